//! Client for queries to running workers (`linerate top`, `linerate conns`, `--metrics`) from other threads.

use crate::jobs::Make;
use linerate_service::inspect::{ConnPage, SLOTS_PER_QUERY, Snapshot, StatsQuery};
use linerate_service::{AppSender, Service};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Timeout of a query. A worker replies in its next turn unless its service blocks.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Posts a query to a worker; returns `false` if its mailbox is full.
type Post = Box<dyn Fn(usize, StatsQuery) -> bool + Send + Sync>;

/// Adds values of the port to the reply of the first worker.
type AddPort = Box<dyn Fn(&mut Snapshot) + Send + Sync>;

/// Returns whether a reply is still outstanding.
type IsDue = Box<dyn FnMut() -> bool + Send>;

/// Client for queries to a network's workers, for services of any message type. It connects when the first worker is
/// created.
#[derive(Clone, Default)]
pub struct StatsClient(Arc<Inner>);

#[derive(Default)]
struct Inner {
    ask: OnceLock<Post>,
    port: OnceLock<AddPort>,
    /// Workers whose reply timed out. They get no further query until they have replied, because a client that queries
    /// every second would fill their mailboxes.
    late: Mutex<BTreeMap<usize, IsDue>>,
}

impl StatsClient {
    /// Wraps `make` so that the first service created also connects this client.
    pub fn connect_with<S: Service + 'static>(&self, make: Make<S>) -> Make<S> {
        let stats = self.clone();
        Arc::new(move |ctx| {
            stats.connect(&ctx.app_sender);
            make(ctx)
        })
    }

    fn connect<M: Send + 'static>(&self, app_sender: &AppSender<M>) {
        let app_sender = app_sender.clone();
        self.0.ask.get_or_init(|| {
            Box::new(move |worker, look| worker < app_sender.workers() && app_sender.query(worker, look))
        });
    }

    /// Calls `add` with each reply of the first worker, to add values of the port.
    #[cfg(feature = "dpdk")]
    pub(crate) fn add_port(&self, add: impl Fn(&mut Snapshot) + Send + Sync + 'static) {
        // A network is started once.
        let _ = self.0.port.set(Box::new(add));
    }

    /// Returns the counters of each of the first `workers` workers; `None` for a worker that does not reply before the
    /// timeout.
    pub fn snapshots(&self, workers: usize) -> Vec<Option<Snapshot>> {
        let until = Instant::now() + TIMEOUT;
        let answers: Vec<_> =
            (0..workers).map(|worker| self.ask(worker, |reply| StatsQuery::Counters { reply })).collect();
        let receive = |(worker, answer): (usize, Option<_>)| self.receive(worker, answer?, until);
        let mut snapshots: Vec<Option<Snapshot>> = answers.into_iter().enumerate().map(receive).collect();
        if let (Some(Some(first)), Some(add)) = (snapshots.first_mut(), self.0.port.get()) {
            add(first);
        }
        snapshots
    }

    /// Returns the connections of `worker` in slots from `from` on, as many as fit one message; `None` if it does not
    /// reply before the timeout.
    pub fn page(&self, worker: usize, from: usize) -> Option<ConnPage> {
        let until = Instant::now() + TIMEOUT;
        let look = |reply| StatsQuery::Connections { from, most: SLOTS_PER_QUERY, reply };
        self.receive(worker, self.ask(worker, look)?, until)
    }

    /// Posts a query to `worker`, unless the client is not connected or the worker still has a reply outstanding.
    fn ask<T>(&self, worker: usize, look: impl FnOnce(Sender<T>) -> StatsQuery) -> Option<Receiver<T>> {
        let ask = self.0.ask.get()?;
        let mut late = self.late();
        if late.get_mut(&worker).is_some_and(|is_due| is_due()) {
            return None;
        }
        late.remove(&worker);
        let (reply, answer) = channel();
        ask(worker, look(reply)).then_some(answer)
    }

    fn receive<T: Send + 'static>(&self, worker: usize, answer: Receiver<T>, until: Instant) -> Option<T> {
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(replies) => Some(replies),
            Err(RecvTimeoutError::Timeout) => {
                self.late().insert(worker, Box::new(move || answer.try_recv().err() == Some(TryRecvError::Empty)));
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn late(&self) -> MutexGuard<'_, BTreeMap<usize, IsDue>> {
        // Every critical section leaves the map consistent, so a poisoned lock can be used.
        self.0.late.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_service::mailbox::{self, mailbox};
    use linerate_service::{AppMsg, ConnId, Origin, Transport, WorkerCtx};
    use std::convert::Infallible;

    struct Silent;

    impl Service for Silent {
        type Conn = ();
        type Message = Infallible;

        fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}
    }

    type Mail = mailbox::Receiver<AppMsg<Infallible>>;

    fn client_of(workers: usize, room: usize) -> (StatsClient, Vec<Mail>) {
        let (senders, mails): (Vec<_>, Vec<_>) = (0..workers).map(|_| mailbox(room)).unzip();
        let stats = StatsClient::default();
        let make = stats.connect_with(Arc::new(|_: WorkerCtx<_>| Silent));
        make(WorkerCtx { worker: 0, workers, app_sender: AppSender::new(senders) });
        (stats, mails)
    }

    fn answer(mail: &mut Mail, worker: usize) {
        if let Some(AppMsg::Query(look)) = mail.receive()
            && let StatsQuery::Counters { reply } = *look
        {
            // The querying thread may have timed out.
            let _ = reply.send(Snapshot { worker, ..Snapshot::default() });
        }
    }

    #[test]
    fn queries_fail_before_a_worker_exists() {
        assert_eq!(StatsClient::default().snapshots(2), [None, None]);
        assert_eq!(StatsClient::default().page(0, 0), None);
    }

    #[test]
    fn each_worker_gets_one_query_and_replies_are_in_order() {
        let (stats, mut mails) = client_of(3, 4);
        let asking = std::thread::spawn(move || stats.snapshots(3));
        for worker in [2, 0, 1] {
            while mails[worker].is_empty() {
                std::thread::yield_now();
            }
            answer(&mut mails[worker], worker);
            assert!(mails[worker].is_empty());
        }
        let replies: Vec<_> = asking.join().unwrap().into_iter().map(|replies| replies.unwrap().worker).collect();
        assert_eq!(replies, [0, 1, 2]);
    }

    #[test]
    fn full_mailbox_or_dropped_query_does_not_delay() {
        let (stats, mut mails) = client_of(2, 1);
        // Fill the mailbox of worker 0.
        assert_eq!(stats.0.ask.get().map(|ask| ask(0, StatsQuery::Counters { reply: channel().0 })), Some(true));
        let asking = std::thread::spawn(move || (Instant::now(), stats.snapshots(2)));
        while mails[1].is_empty() {
            std::thread::yield_now();
        }
        drop(mails[1].receive());
        let (began, replies) = asking.join().unwrap();
        assert_eq!(replies, [None, None]);
        assert!(began.elapsed() < TIMEOUT);
    }

    #[test]
    fn late_worker_gets_no_further_query_until_it_replies() {
        let (stats, mut mails) = client_of(1, 8);
        assert_eq!(stats.snapshots(1), [None]);
        let began = Instant::now();
        for _ in 0..100 {
            assert_eq!((stats.snapshots(1), stats.page(0, 0)), (vec![None], None));
        }
        assert!(began.elapsed() < TIMEOUT);
        answer(&mut mails[0], 0);
        assert!(mails[0].is_empty(), "queried again");
        let asking = std::thread::spawn(move || stats.snapshots(1));
        while mails[0].is_empty() {
            std::thread::yield_now();
        }
        answer(&mut mails[0], 0);
        assert!(asking.join().unwrap()[0].is_some());
    }
}
