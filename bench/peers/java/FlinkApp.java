package peers;

import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.*;
import org.apache.flink.api.common.typeinfo.*;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.*;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.*;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Arguments: bootstrap, raw topic, ordered topic, folder, name, milliseconds between checkpoints. */
public class FlinkApp {
    static class Read implements KafkaRecordDeserializationSchema<Tuple2<String, byte[]>> {
        @Override public void deserialize(ConsumerRecord<byte[], byte[]> r, Collector<Tuple2<String, byte[]>> out) {
            if (r.key() == null) return; // a tick of precede, which reads the same topic
            out.collect(Tuple2.of(new String(r.key(), StandardCharsets.UTF_8), r.value()));
        }
        @Override public TypeInformation<Tuple2<String, byte[]>> getProducedType() { return ROW; }
    }

    static class Write implements KafkaRecordSerializationSchema<Tuple2<String, byte[]>> {
        private final String topic;
        Write(String topic) { this.topic = topic; }
        @Override public ProducerRecord<byte[], byte[]> serialize(Tuple2<String, byte[]> r, KafkaSinkContext c, Long t) {
            return new ProducerRecord<>(topic, r.f0.getBytes(StandardCharsets.UTF_8), r.f1);
        }
    }

    static final TypeInformation<Tuple2<String, byte[]>> ROW = TypeInformation.of(new TypeHint<Tuple2<String, byte[]>>() {});

    static class Order extends KeyedProcessFunction<String, Tuple2<String, byte[]>, Tuple2<String, byte[]>> {
        private transient ValueState<Group> groups;

        @Override public void open(OpenContext c) {
            groups = getRuntimeContext().getState(new ValueStateDescriptor<>("groups", Group.class));
        }

        @Override public void processElement(Tuple2<String, byte[]> r, Context c, Collector<Tuple2<String, byte[]>> out) throws Exception {
            Group g = groups.value();
            if (g == null) g = new Group();
            g.take(r.f1, v -> out.collect(Tuple2.of(r.f0, v)));
            groups.update(g);
        }
    }

    public static void main(String[] args) throws Exception {
        Path checkpoints = Path.of(args[3], "checkpoints");
        Configuration conf = new Configuration();
        conf.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
        conf.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toUri().toString());
        // Outside a cluster with high availability nobody else looks for the last checkpoint.
        try (Stream<Path> files = Files.exists(checkpoints) ? Files.walk(checkpoints) : Stream.empty()) {
            files.filter(f -> f.endsWith("_metadata")).max(Comparator.comparingLong(f -> f.toFile().lastModified()))
                .ifPresent(f -> conf.set(StateRecoveryOptions.SAVEPOINT_PATH, f.getParent().toString()));
        }
        StreamExecutionEnvironment e = StreamExecutionEnvironment.createLocalEnvironment(2, conf);
        e.enableCheckpointing(Long.parseLong(args[5]));
        e.setBufferTimeout(10);
        e.getConfig().enableObjectReuse();
        Properties p = new Properties();
        p.put("transaction.timeout.ms", "600000");
        KafkaSource<Tuple2<String, byte[]>> source = KafkaSource.<Tuple2<String, byte[]>>builder()
            .setBootstrapServers(args[0])
            .setTopics(args[1])
            .setGroupId(args[4])
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setDeserializer(new Read())
            .setProperty("fetch.max.wait.ms", "5")
            .build();
        KafkaSink<Tuple2<String, byte[]>> sink = KafkaSink.<Tuple2<String, byte[]>>builder()
            .setBootstrapServers(args[0])
            .setRecordSerializer(new Write(args[2]))
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(args[4])
            .setKafkaProducerConfig(p)
            .build();
        e.fromSource(source, WatermarkStrategy.noWatermarks(), "raw").keyBy(r -> r.f0, Types.STRING).process(new Order(), ROW).sinkTo(sink);
        e.execute("s_b");
    }
}
