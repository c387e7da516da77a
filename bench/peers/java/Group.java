package peers;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.function.Consumer;

/**
 * The order s_b for one group: what was delivered, what is held, and what a message releases.
 * It trusts its input: nothing is checked beyond what the JSON reader needs, and nothing becomes a dead letter.
 */
public class Group {
    public long position;
    public Map<String, Sender> senders = new HashMap<>();
    public Map<String, List<Held>> waiting = new HashMap<>(); // by parent, in arrival order
    public Set<String> held = new HashSet<>();

    /** What of a sender was delivered: all up to prefix, and some beyond it. */
    public static class Sender {
        public long prefix;
        public Set<Long> beyond = new HashSet<>();
    }

    public static class Held {
        public String sender;
        public long seq;
        public byte[] value;
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    static class Message {
        public String group, sender;
        public long epoch, seq;
        public List<Object[]> after;
    }

    static final ObjectMapper JSON = new ObjectMapper();

    /** Take one record; out gets what is delivered, depth first, children in arrival order. */
    public void take(byte[] value, Consumer<byte[]> out) throws IOException {
        Message m = JSON.readValue(value, Message.class);
        Held h = new Held();
        h.sender = m.sender + "@" + m.epoch;
        h.seq = m.seq;
        h.value = value;
        String id = h.sender + ":" + h.seq;
        if (delivered(h.sender, h.seq) || held.contains(id)) return;
        if (!m.after.isEmpty()) {
            Object[] p = m.after.get(0);
            String sender = p[0] + "@" + p[1];
            long seq = ((Number) p[2]).longValue();
            if (!delivered(sender, seq)) {
                held.add(id);
                waiting.computeIfAbsent(sender + ":" + seq, k -> new ArrayList<>()).add(h);
                return;
            }
        }
        Deque<Held> stack = new ArrayDeque<>();
        stack.push(h);
        while (!stack.isEmpty()) {
            Held one = stack.pop();
            String oneId = one.sender + ":" + one.seq;
            deliver(one, out);
            held.remove(oneId);
            List<Held> children = waiting.remove(oneId);
            if (children != null) for (int i = children.size(); i-- > 0;) stack.push(children.get(i));
        }
    }

    private boolean delivered(String sender, long seq) {
        Sender s = senders.get(sender);
        return s != null && (seq <= s.prefix || s.beyond.contains(seq));
    }

    private void deliver(Held h, Consumer<byte[]> out) {
        Sender s = senders.computeIfAbsent(h.sender, k -> new Sender());
        if (h.seq == s.prefix + 1) {
            s.prefix++;
            while (s.beyond.remove(s.prefix + 1)) s.prefix++;
        } else {
            s.beyond.add(h.seq);
        }
        byte[] tail = (",\"position\":" + ++position + "}").getBytes(StandardCharsets.US_ASCII);
        byte[] whole = Arrays.copyOf(h.value, h.value.length - 1 + tail.length);
        System.arraycopy(tail, 0, whole, h.value.length - 1, tail.length);
        out.accept(whole);
    }
}
