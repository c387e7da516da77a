"""Which ids are settled, which means delivered or abandoned: runs of seqs for each sender and epoch."""

from bisect import bisect_right

from precede.udfs.records.messages import Id, Who


class _Runs:
    """The seqs from 1 to `upto`, and runs beyond it; as long as there are no gaps, it is one number."""

    __slots__ = ("ends", "starts", "upto")

    def __init__(self) -> None:
        self.upto = 0
        self.starts: list[int] = []
        self.ends: list[int] = []

    def __contains__(self, seq: int) -> bool:
        if seq <= self.upto:
            return True
        at = bisect_right(self.starts, seq) - 1
        return at >= 0 and seq <= self.ends[at]

    def add(self, seq: int) -> None:
        starts, ends = self.starts, self.ends
        if seq == self.upto + 1:
            self.upto = seq
            if starts and starts[0] == seq + 1:
                self.upto = ends.pop(0)
                starts.pop(0)
            return
        if seq in self:
            return
        at = bisect_right(starts, seq)
        joins_left = at > 0 and ends[at - 1] == seq - 1
        joins_right = at < len(starts) and starts[at] == seq + 1
        if joins_left and joins_right:
            ends[at - 1] = ends.pop(at)
            starts.pop(at)
        elif joins_left:
            ends[at - 1] = seq
        elif joins_right:
            starts[at] = seq
        else:
            starts.insert(at, seq)
            ends.insert(at, seq)


class Settled:
    """The settled ids of a group, or of one destination."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[Who, _Runs] = {}

    def __contains__(self, id_: Id) -> bool:
        runs = self._runs.get((id_[0], id_[1]))
        if runs is None:
            return False
        return id_[2] <= runs.upto or (bool(runs.starts) and id_[2] in runs)

    def upto(self, who: Who) -> int:
        """The seq up to which everything of this sender and epoch is settled."""
        runs = self._runs.get(who)
        return 0 if runs is None else runs.upto

    def add(self, id_: Id) -> bool:
        """Settle an id; False if it was settled before."""
        who, seq = (id_[0], id_[1]), id_[2]
        runs = self._runs.get(who)
        if runs is None:
            runs = self._runs[who] = _Runs()
        if seq == runs.upto + 1 and not runs.starts:
            runs.upto = seq
            return True
        if seq <= runs.upto or (runs.starts and seq in runs):
            return False
        runs.add(seq)
        return True

    def begin(self, who: Who, seq: int) -> None:
        """Count everything below this seq as settled: it lies before what is judged."""
        if who not in self._runs:
            runs = self._runs[who] = _Runs()
            runs.upto = seq - 1
