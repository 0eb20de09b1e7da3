//! The capture file and the thread that writes it.

use super::{CaptureConfig, filter};
use linerate_bypass::capture::{Filter, Reader, capture};
use linerate_bypass::dpdk::QueuePair;
use linerate_bypass::pcapng::{self, Interface};
use linerate_bypass::{Capabilities, Via};
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Ring memory per worker: some milliseconds of a fast port's traffic.
const MEMORY: usize = 16 << 20;
/// Bounds of the number of frames in the ring.
const RECORDS: std::ops::RangeInclusive<usize> = 64..=16_384;
/// Frames of one worker written before the next worker's turn, which bounds how far the file is out of order.
const AT_ONCE: usize = 32;
/// Polling interval of the thread when no frames arrive. Workers do not wake it, which would need a system call.
const LOOK: Duration = Duration::from_millis(2);
/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;

/// Reason that a capture cannot start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum Error {
    #[error("`capture` {}: {source}: give a file that can be written", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("`capture.filter` '{words}': {message}: see the manual page pcap-filter(7)")]
    Filter { words: String, message: String },
    #[error("`capture`: cannot start a thread: {0}: raise the limit of threads")]
    Spawn(io::Error),
}

/// An empty capture file.
pub struct CaptureFile {
    config: CaptureConfig,
    file: File,
}

impl CaptureConfig {
    /// Creates or truncates the file.
    pub fn create(&self) -> Result<CaptureFile, Error> {
        self.compile_filter()?;
        let file = File::create(&self.file).map_err(|source| Error::Create { path: self.file.clone(), source })?;
        Ok(CaptureFile { config: self.clone(), file })
    }

    fn compile_filter(&self) -> Result<Option<Filter>, Error> {
        let compile =
            |words: &String| filter::compile(words).map_err(|message| Error::Filter { words: words.clone(), message });
        self.filter.as_ref().map(compile).transpose()
    }
}

impl CaptureFile {
    /// Writes the frames of `queues`, which belong to the port of `via`, until the return value is dropped.
    pub fn begin(self, via: &Via, port: &Capabilities, queues: &mut [QueuePair]) -> Result<RunningCapture, Error> {
        let CaptureFile { config, file } = self;
        let snap = config.snap.unwrap_or(usize::from(port.mtu) + ETHERNET);
        let names: Vec<String> = (0..queues.len()).map(|queue| format!("{via} queue {queue}")).collect();
        let words = config.filter.as_deref();
        let interfaces: Vec<_> = names.iter().map(|name| Interface { name, snap, filter: words }).collect();
        let failed = |source| Error::Create { path: config.file.clone(), source };
        let out = BufWriter::with_capacity(1 << 20, file);
        let file = pcapng::File::begin(out, config.size, &interfaces).map_err(failed)?;
        let mut readers = Vec::with_capacity(queues.len());
        for queue in queues {
            let records = (MEMORY / snap).clamp(*RECORDS.start(), *RECORDS.end());
            let (keeps, reader) = capture(records, snap, config.compile_filter()?);
            queue.set_capture(keeps);
            readers.push(QueueCapture { reader, kept: 0 });
        }
        let ended = Arc::new(AtomicBool::new(false));
        let until = ended.clone();
        let write = move || {
            if let Err(error) = write(file, readers, &until) {
                tracing::error!("{}: {error}: capturing stops", config.file.display());
            }
        };
        let thread = std::thread::Builder::new().name("pcap".into()).spawn(write).map_err(Error::Spawn)?;
        Ok(RunningCapture { ended, thread: Some(thread) })
    }
}

/// A running capture. Dropping it writes all frames captured so far.
pub struct RunningCapture {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for RunningCapture {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // The thread logs its own errors.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct QueueCapture {
    reader: Reader,
    kept: u64,
}

/// Writes the captured frames of `workers` until `ended` is set or `file` is full.
fn write<W: io::Write>(
    mut file: pcapng::File<W>,
    mut workers: Vec<QueueCapture>,
    ended: &AtomicBool,
) -> io::Result<()> {
    let mut is_full = false;
    while !is_full {
        // Frames captured before `ended` was set are read after this load.
        let is_last = ended.load(Ordering::Acquire);
        let mut written = 0;
        for (interface, worker) in workers.iter_mut().enumerate() {
            for _ in 0..AT_ONCE {
                let Some(fits) = worker.reader.read(|record| file.frame(interface, record)) else { break };
                if !fits? {
                    is_full = true;
                    break;
                }
                worker.kept += 1;
                written += 1;
            }
        }
        if written == 0 {
            if is_last {
                break;
            }
            file.flush()?;
            std::thread::sleep(LOOK);
        }
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for (interface, worker) in workers.iter().enumerate() {
        file.counters(interface, now, worker.kept, worker.reader.missed())?;
    }
    file.flush()?;
    let missed: u64 = workers.iter().map(|worker| worker.reader.missed()).sum();
    if missed > 0 {
        tracing::warn!("{missed} frames are missing in the capture: they arrived faster than they could be written");
    }
    if is_full {
        tracing::warn!("the capture has reached its size limit: capturing stops");
    }
    Ok(())
}
