"""Judges a stream: raw records, ordered records and dead letters go in, in step, and findings come out.

Memory goes by open work: of what is settled, only runs of ids are kept, and of what was refused nothing.
"""

from collections.abc import Collection

import msgspec

from precede.check.accounts import Accounts
from precede.check.group import GroupSequence
from precede.check.guarantees import promise_of
from precede.check.records import ERASED, LetterRead, OrderedRead, RawRecord, UnreadableError, read_head
from precede.check.refusals import MAY_BE_HELD_FIRST, TAKES_ID, Letters
from precede.check.witness import Shown, Violation, Witnesses, shown_raw
from precede.udfs.limits import Limits
from precede.udfs.records.messages import Create, Message

DEFAULT_ORDER = "s_b"


class Report(msgspec.Struct, omit_defaults=True):
    """What a check has found."""

    holds: bool | None
    """None if nothing is broken, and something could not be judged."""
    groups: int
    ordered: int
    raw: int
    dead_letters: int
    copies: int
    held: int
    erased: int
    before: int
    """Messages that follow something which lies before the beginning, and so count as rightly placed."""
    violations: list[Violation] = []
    groups_broken: int = 0
    broken: dict[str, int] = {}
    """How often each promise was broken."""
    unjudged: list[tuple[str, str, int]] = []
    """What could not be judged, what is missing for it, and how often."""

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 0 if self.holds else 1 if self.holds is False else 2


class _Group:
    """One group: its sequence, and its accounts where the raw log is read."""

    __slots__ = ("accounts", "home", "sequence")

    def __init__(self, sequence: GroupSequence) -> None:
        self.sequence = sequence
        self.accounts: Accounts | None = None
        self.home: int | None = None


class Check:
    """One run over a stream."""

    def __init__(
        self,
        *,
        groups: Collection[str] = (),
        order: str = DEFAULT_ORDER,
        limits: Limits | None = None,
        has_raw: bool = True,
        has_letters: bool = True,
        is_whole: bool = True,
    ) -> None:
        """`groups` are all without a name; `is_whole` tells whether the stream is read from its beginning."""
        self.findings = Witnesses()
        self.ordered = self.raw = self.letters = 0
        self._wanted = frozenset(groups)
        self._order = order
        self._limits = limits or Limits()
        self._has_raw = has_raw
        self._has_letters = has_letters
        self._is_whole = is_whole
        self._groups: dict[str, _Group] = {}
        self._letters: dict[int, Letters] = {}
        self._with_ticks: dict[int, list[Accounts]] = {}

    # ── what comes ────────────────────────────────────────────────────────────────────────────────────────────────

    def take_raw(self, one: RawRecord) -> None:
        """The next record of a raw partition; dead letters that came before it must have been taken."""
        self.raw += 1
        record, name = one.record, one.group
        if name is None:
            if record is not None and record.kind == "tick":
                for accounts in self._with_ticks.get(one.partition, ()):
                    accounts.arrive(one)
            else:
                self._must_be_refused(one, "cannot be read, or stands under another key")
            return
        if self._wanted and name not in self._wanted:
            return
        group = self._group(name)
        if group.home != one.partition and not self._is_at_home(group, one):
            return
        judged = group.accounts
        assert judged is not None
        judged.arrive(one)
        if judged.wants_ticks and isinstance(record, Create):
            self._with_ticks.setdefault(one.partition, []).append(judged)

    def unreadable(self, where: str, error: UnreadableError) -> None:
        """There is something in the ordered topic, table or file that is no ordered record."""
        self.ordered += 1
        self.findings.add(Violation("fields", None, f"{where} is no ordered record: {error}."))

    def take(self, one: OrderedRead) -> None:
        """The next ordered record of its group; the raw log must have been taken up to what released it."""
        self.ordered += 1
        if self._wanted and one.group not in self._wanted:
            return
        group = self._group(one.group)
        if self._has_raw and group.accounts is None:
            self._settle_in(group, one.partition)
        if group.accounts is None:
            group.sequence.take(one, read_head(one, self._limits) if one.status != ERASED else None)
            return
        group.accounts.take(one)

    def take_letter(self, letter: LetterRead) -> None:
        """The next dead letter."""
        self.letters += 1
        codes = self._letters.setdefault(letter.partition, {}).setdefault(letter.offset, {})
        if letter.destination in codes:
            at = Shown(None, letter.partition, letter.offset)
            self.findings.add(Violation("account", letter.group, f"{at} was refused twice.", [at]))
        codes[letter.destination] = letter.code
        if letter.code in TAKES_ID and letter.group is not None:
            group = self._groups.get(letter.group)
            if group is not None and group.accounts is not None and group.home == letter.partition:
                group.accounts.condemn(letter.offset)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self, below: dict[int, int] | None = None) -> None:
        """Everything that raw records below these offsets released has been taken; without them, all of the log."""
        for group in self._groups.values():
            if group.accounts is None:
                continue
            if below is None:
                group.accounts.run(2**63)
            elif group.home in below:
                group.accounts.run(below[group.home])

    @property
    def held(self) -> int:
        """How many messages are held, as far as the raw log was judged."""
        return sum(group.accounts.held for group in list(self._groups.values()) if group.accounts is not None)

    def report(self) -> Report:
        """The verdict, once everything was taken."""
        for group in self._groups.values():
            group.sequence.finish()
        self._look_for_strays()
        accounts = [group.accounts for group in self._groups.values() if group.accounts is not None]
        findings = self.findings
        unjudged = [(*what, count) for what, count in sorted(findings.unjudged.items())]
        violations = findings.violations
        return Report(
            holds=False if violations else None if unjudged else True,
            groups=len(self._groups),
            ordered=self.ordered,
            raw=self.raw,
            dead_letters=self.letters,
            copies=sum(one.copies for one in accounts),
            held=self.held,
            erased=sum(findings.noted.values()),
            before=findings.before,
            violations=violations,
            groups_broken=findings.groups_broken,
            broken=dict(findings.counts.most_common()),
            unjudged=unjudged,
        )

    def _look_for_strays(self) -> None:
        """Dead letters that no raw record has met: of what is not in the log, or was delivered too."""
        broken = {violation.group for violation in self.findings.violations}
        off = any(group.accounts is not None and group.accounts.is_off for group in self._groups.values())
        if broken or off or not self._has_raw or not self._is_whole or self._wanted:
            return
        held = {
            (group.home, one.offset)
            for group in self._groups.values()
            if group.accounts is not None
            for one in group.accounts.open.values()
        }
        for partition, letters in self._letters.items():
            for offset in letters:
                if (partition, offset) not in held:
                    at = Shown(None, partition, offset)
                    sentence = f"{at} has a dead letter, and was also delivered, was a copy, or is not in the raw log."
                    self.findings.add(Violation("account", None, sentence, [at]))

    # ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _group(self, name: str) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(GroupSequence(name, self.findings, is_whole=self._is_whole))
        return group

    def _is_at_home(self, group: _Group, one: RawRecord) -> bool:
        """Whether a group's record is in its partition; the first one that counts decides which that is."""
        codes = self._letters.get(one.partition, {}).get(one.offset)
        if codes is not None:
            code = next(iter(codes.values()))
            leaves_trace = code in MAY_BE_HELD_FIRST and (code not in TAKES_ID or promise_of(self._order).answers_first)
            if group.home is None and isinstance(one.record, Message) and leaves_trace:
                self._settle_in(group, one.partition)
                return True
            if code == "wrong_partition" or group.home is None:
                del self._letters[one.partition][one.offset]
                return False
        if group.home is None or group.accounts is None:
            self._settle_in(group, one.partition)
            return True
        self._must_be_refused(one, "is not in the partition of its group")
        return False

    def _settle_in(self, group: _Group, partition: int) -> None:
        group.home = partition
        if self._has_raw and group.accounts is None:
            letters = self._letters.setdefault(partition, {}) if self._has_letters else None
            group.accounts = Accounts(group.sequence, self.findings, letters, self._order, self._limits)

    def _must_be_refused(self, one: RawRecord, why: str) -> None:
        letters = self._letters.get(one.partition, {})
        if letters.pop(one.offset, None) is None and self._has_letters:
            at = shown_raw(one, None)
            self.findings.add(Violation("account", one.group, f"{at} {why}, and has no dead letter.", [at]))
