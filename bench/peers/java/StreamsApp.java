package peers;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.dataformat.cbor.CBORFactory;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.processor.api.*;
import org.apache.kafka.streams.state.*;

/** Arguments: bootstrap, raw topic, ordered topic, folder, name, then commit.interval.ms and producer.linger.ms if wanted. */
public class StreamsApp {
    static final ObjectMapper CBOR = new ObjectMapper(new CBORFactory());
    static final Serde<Group> GROUPS = Serdes.serdeFrom((topic, g) -> {
        try { return g == null ? null : CBOR.writeValueAsBytes(g); } catch (IOException e) { throw new UncheckedIOException(e); }
    }, (topic, b) -> {
        try { return b == null ? null : CBOR.readValue(b, Group.class); } catch (IOException e) { throw new UncheckedIOException(e); }
    });

    static class Order implements Processor<String, byte[], String, byte[]> {
        private ProcessorContext<String, byte[]> context;
        private KeyValueStore<String, Group> groups;

        @Override public void init(ProcessorContext<String, byte[]> context) {
            this.context = context;
            groups = context.getStateStore("groups");
        }

        @Override public void process(org.apache.kafka.streams.processor.api.Record<String, byte[]> r) {
            if (r.key() == null) return; // a tick of precede, which reads the same topic
            Group g = Optional.ofNullable(groups.get(r.key())).orElseGet(Group::new);
            try { g.take(r.value(), v -> context.forward(r.withValue(v))); } catch (IOException e) { throw new UncheckedIOException(e); }
            groups.put(r.key(), g);
        }
    }

    public static void main(String[] args) {
        Topology t = new Topology();
        t.addSource("raw", Serdes.String().deserializer(), Serdes.ByteArray().deserializer(), args[1]);
        t.addProcessor("order", Order::new, "raw");
        t.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("groups"), Serdes.String(), GROUPS).withCachingEnabled(), "order");
        t.addSink("ordered", args[2], Serdes.String().serializer(), Serdes.ByteArray().serializer(), "order");
        Properties p = new Properties();
        p.put("bootstrap.servers", args[0]);
        p.put("application.id", args[4]);
        p.put("processing.guarantee", "exactly_once_v2");
        p.put("num.stream.threads", "2");
        p.put("state.dir", args[3] + "/state");
        p.put("auto.offset.reset", "earliest");
        if (args.length > 5) p.put("commit.interval.ms", args[5]);
        if (args.length > 6) p.put("producer.linger.ms", args[6]);
        KafkaStreams streams = new KafkaStreams(t, p);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
