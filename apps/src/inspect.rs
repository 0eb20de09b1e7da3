//! A look into the running program, for whoever asks from outside.

mod http;
mod metrics;

use crate::units::parse_address;
use linerate_bypass::inspect::{Look, Snapshot};
use linerate_bypass::{Seat, Service};
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long workers may take to answer. They do in their next turn, if no service holds them up.
const PATIENCE: Duration = Duration::from_secs(1);

/// What servers take that can be looked into.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct InspectArgs {
    /// Tell counters to Prometheus at http://ADDR:PORT/metrics, on a kernel socket; port 0 is any, which the ready line tells. Whoever
    /// reaches the address can read them
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
}

impl InspectArgs {
    /// Begins to listen, if it is asked for.
    pub fn listen(&self) -> Result<Option<Metrics>, Error> {
        self.metrics.map(Metrics::bind).transpose()
    }
}

/// Why nobody can look in.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("--metrics {address}: {source}: give a free address and port of this machine")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the kernel says.
        source: io::Error,
    },
    /// There can be no thread for it.
    #[error("--metrics: cannot start a thread: {0}: raise the limit of threads")]
    Spawn(io::Error),
}

/// Where metrics are asked for, before there is anything to tell.
pub struct Metrics {
    listener: http::Listener,
    address: SocketAddr,
}

impl Metrics {
    fn bind(address: SocketAddr) -> Result<Self, Error> {
        let failed = |source| Error::Bind { address, source };
        let listener = http::Listener::bind(address).map_err(failed)?;
        let address = listener.address().map_err(failed)?;
        Ok(Metrics { listener, address })
    }

    /// The address, with the port that was found for 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers, until what is returned is dropped.
    pub fn serve(self, way: Way, workers: usize) -> Result<http::Server, Error> {
        self.listener.serve(move || metrics::page(&way.snapshots(workers))).map_err(Error::Spawn)
    }
}

/// What leaves a question at a worker, and says whether there was room for it.
type Ask = Box<dyn Fn(usize, Look) -> bool + Send + Sync>;

/// The way to the workers of a network, whatever their services' messages are. It is known once one of them has been made.
#[derive(Clone, Default)]
pub struct Way(Arc<OnceLock<Ask>>);

impl Way {
    /// `make`, which also tells the way.
    pub fn told_by<M: Send + 'static, S: Service<Message = M>>(
        &self,
        make: Arc<impl Fn(Seat<M>) -> S + Send + Sync + 'static>,
    ) -> Arc<impl Fn(Seat<M>) -> S + Send + Sync + 'static> {
        let way = self.clone();
        Arc::new(move |seat: Seat<M>| {
            let postbox = seat.postbox.clone();
            way.0
                .get_or_init(|| Box::new(move |worker, look| worker < postbox.workers() && postbox.look(worker, look)));
            make(seat)
        })
    }

    /// What each of the first `workers` workers has counted; `None` for one that does not answer in time.
    pub fn snapshots(&self, workers: usize) -> Vec<Option<Snapshot>> {
        let mut told = vec![None; workers];
        let Some(ask) = self.0.get() else { return told };
        let (reply, answers) = channel();
        let mut due = (0..workers).filter(|worker| ask(*worker, Look::Counters { reply: reply.clone() })).count();
        // When those have answered or gone that were asked, nothing more is to come.
        drop(reply);
        let until = Instant::now() + PATIENCE;
        while due > 0
            && let Ok(snapshot) = answers.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            due -= 1;
            let worker = snapshot.worker;
            if let Some(place) = told.get_mut(worker) {
                *place = Some(snapshot);
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Echo;
    use linerate_bypass::Postbox;
    use linerate_bypass::mailbox::{Receiver, mailbox};
    use linerate_bypass::{Letter, inspect};

    type Mail = Receiver<Letter<<Echo as Service>::Message>>;

    fn way_to(workers: usize, room: usize) -> (Way, Vec<Mail>) {
        let (senders, mails): (Vec<_>, Vec<_>) = (0..workers).map(|_| mailbox(room)).unzip();
        let way = Way::default();
        let make = way.told_by(Arc::new(|_: Seat<_>| Echo));
        make(Seat { worker: 0, workers, postbox: Postbox::new(senders) });
        (way, mails)
    }

    fn answer(mail: &mut Mail, worker: usize) {
        if let Some(Letter::Look(look)) = mail.receive()
            && let inspect::Look::Counters { reply } = *look
        {
            reply.send(Snapshot { worker, ..Snapshot::default() }).unwrap();
        }
    }

    #[test]
    fn nobody_answers_before_there_is_a_worker() {
        assert_eq!(Way::default().snapshots(2), [None, None]);
    }

    #[test]
    fn each_worker_is_asked_once_and_answers_are_in_their_places() {
        let (way, mut mails) = way_to(3, 4);
        let asking = std::thread::spawn(move || way.snapshots(3));
        for worker in [2, 0, 1] {
            while mails[worker].is_empty() {
                std::thread::yield_now();
            }
            answer(&mut mails[worker], worker);
            assert!(mails[worker].is_empty());
        }
        let told: Vec<_> = asking.join().unwrap().into_iter().map(|told| told.unwrap().worker).collect();
        assert_eq!(told, [0, 1, 2]);
    }

    #[test]
    fn who_has_no_room_or_lets_the_question_fall_is_not_waited_for() {
        let (way, mut mails) = way_to(2, 1);
        // The first has no room from now on.
        assert_eq!(way.0.get().map(|ask| ask(0, Look::Counters { reply: channel().0 })), Some(true));
        let asking = std::thread::spawn(move || (Instant::now(), way.snapshots(2)));
        while mails[1].is_empty() {
            std::thread::yield_now();
        }
        drop(mails[1].receive());
        let (began, told) = asking.join().unwrap();
        assert_eq!(told, [None, None]);
        assert!(began.elapsed() < PATIENCE);
    }
}
