//! The thread that writes, and what leads to it.

use super::pcapng::{self, Interface};
use super::{CaptureArgs, SIZE, filter};
use linerate_bypass::capture::{Filter, Reader, capture};
use linerate_bypass::dpdk::QueuePair;
use linerate_bypass::{Capabilities, Via};
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Memory for frames of one worker that are to be written: some milliseconds of a fast port.
const MEMORY: usize = 16 << 20;
/// Frames that it is for, whatever they have.
const RECORDS: std::ops::RangeInclusive<usize> = 64..=16_384;
/// Frames of one worker that are written before it is another's turn, so that the file is in order but for so many.
const AT_ONCE: usize = 32;
/// How often it is looked for frames when none came. Workers do not wake the thread, for that would be a system call of theirs.
const LOOK: Duration = Duration::from_millis(2);
/// An Ethernet header in bytes.
const ETHERNET: usize = 14;

/// Why nothing can be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be made.
    #[error("--pcap {}: {source}: give a file that can be written", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The words are no filter.
    #[error("--pcap-filter '{words}': {said}: see the manual page pcap-filter(7)")]
    Filter {
        /// The words.
        words: String,
        /// What libpcap says.
        said: String,
    },
    /// There can be no thread for it.
    #[error("--pcap: cannot start a thread: {0}: raise the limit of threads")]
    Spawn(io::Error),
}

/// A file that there is, to which nothing has been written.
pub struct Output {
    args: CaptureArgs,
    path: PathBuf,
    file: File,
}

impl CaptureArgs {
    /// Makes the file, if it is asked for, or empties it.
    pub fn create(&self) -> Result<Option<Output>, Error> {
        let Some(path) = &self.pcap else { return Ok(None) };
        self.filter()?;
        let file = File::create(path).map_err(|source| Error::Create { path: path.clone(), source })?;
        Ok(Some(Output { args: self.clone(), path: path.clone(), file }))
    }

    fn filter(&self) -> Result<Option<Filter>, Error> {
        let compile =
            |words: &String| filter::compile(words).map_err(|said| Error::Filter { words: words.clone(), said });
        self.pcap_filter.as_ref().map(compile).transpose()
    }
}

impl Output {
    /// Writes what passes `queues` of the port behind `via` from now on, until what is returned is dropped.
    pub fn begin(self, via: &Via, port: &Capabilities, queues: &mut [QueuePair]) -> Result<Writing, Error> {
        let Output { args, path, file } = self;
        let snap = args.pcap_snap.unwrap_or(usize::from(port.mtu) + ETHERNET);
        let names: Vec<String> = (0..queues.len()).map(|queue| format!("{via} queue {queue}")).collect();
        let words = args.pcap_filter.as_deref();
        let interfaces: Vec<_> = names.iter().map(|name| Interface { name, snap, filter: words }).collect();
        let failed = |source| Error::Create { path: path.clone(), source };
        let out = BufWriter::with_capacity(1 << 20, file);
        let file = pcapng::File::begin(out, args.pcap_size.unwrap_or(SIZE), &interfaces).map_err(failed)?;
        let mut readers = Vec::with_capacity(queues.len());
        for queue in queues {
            let records = (MEMORY / snap).clamp(*RECORDS.start(), *RECORDS.end());
            let (keeps, reader) = capture(records, snap, args.filter()?);
            queue.keep_copies(keeps);
            readers.push(Kept { reader, kept: 0 });
        }
        let ended = Arc::new(AtomicBool::new(false));
        let until = ended.clone();
        let write = move || {
            if let Err(error) = write(file, readers, &until) {
                tracing::error!("--pcap {}: {error}: no more is written", path.display());
            }
        };
        let thread = std::thread::Builder::new().name("pcap".into()).spawn(write).map_err(Error::Spawn)?;
        Ok(Writing { ended, thread: Some(thread) })
    }
}

/// A file that is being written. When it is dropped, all that has passed until then is in the file.
pub struct Writing {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // It has said itself what went wrong.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Kept {
    reader: Reader,
    kept: u64,
}

/// Writes what `workers` keep until `ended`, or as much of it as there is room for in `file`.
fn write<W: io::Write>(mut file: pcapng::File<W>, mut workers: Vec<Kept>, ended: &AtomicBool) -> io::Result<()> {
    let mut is_full = false;
    while !is_full {
        // What passed before the end is there to be read after it.
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
        tracing::warn!("--pcap: {missed} frames passed faster than they could be written, and are not in the file");
    }
    if is_full {
        tracing::warn!("--pcap: the file is as long as it may be, and what passes from now on is not in it");
    }
    Ok(())
}
