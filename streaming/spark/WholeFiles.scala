package precede

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataOutputStream, Path}
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager

/**
 * Writes the files of a checkpoint into an S3 store, each with one request.
 *
 * Spark's own classes write a file under another name and rename it. S3 has no renaming, so that is a copy with many
 * questions. It is not needed there either: a file appears when it is written to its end, and never before. Of two who
 * write a file that must be new, the store itself lets one win.
 */
class WholeFiles(path: Path, configuration: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, configuration) {

  override def createAtomic(path: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream =
    new WholeFile(
      if (overwriteIfPossible) fs.create(path, true)
      else fs.createFile(path).opt("fs.option.create.conditional.overwrite", true).build()
    )
}

/** A file that is there once it is closed, and that is not there if it is cancelled before. */
class WholeFile(stream: FSDataOutputStream) extends CancellableFSDataOutputStream(stream) {
  override def cancel(): Unit = stream.abort()
}
