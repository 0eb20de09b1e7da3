//! The way to the workers of a network, for who asks from other threads.

use linerate_bypass::inspect::{ConnPage, SLOTS_PER_QUERY, Snapshot, StatsQuery};
use linerate_bypass::{Service, WorkerCtx};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long workers may take to answer. They do in their next turn, if no service holds them up.
const PATIENCE: Duration = Duration::from_secs(1);

/// What leaves a question at a worker, and says whether there was room for it.
type Ask = Box<dyn Fn(usize, StatsQuery) -> bool + Send + Sync>;

/// Says whether an answer is still to come.
type IsDue = Box<dyn FnMut() -> bool + Send>;

/// The way to the workers of a network, whatever their services' messages are. It is known once one of them has been made.
#[derive(Clone, Default)]
pub struct Way(Arc<Inner>);

#[derive(Default)]
struct Inner {
    ask: OnceLock<Ask>,
    /// Workers that did not answer in time. They are not asked again, nor waited for, before they have: whoever asks every second would
    /// fill their mailboxes.
    late: Mutex<BTreeMap<usize, IsDue>>,
}

impl Way {
    /// `make`, which also tells the way.
    pub fn told_by<M: Send + 'static, S: Service<Message = M>>(
        &self,
        make: Arc<impl Fn(WorkerCtx<M>) -> S + Send + Sync + 'static>,
    ) -> Arc<impl Fn(WorkerCtx<M>) -> S + Send + Sync + 'static> {
        let way = self.clone();
        Arc::new(move |ctx: WorkerCtx<M>| {
            let app_sender = ctx.app_sender.clone();
            way.0.ask.get_or_init(|| {
                Box::new(move |worker, look| worker < app_sender.workers() && app_sender.query(worker, look))
            });
            make(ctx)
        })
    }

    /// What each of the first `workers` workers has counted; `None` for one that does not answer in time.
    pub fn snapshots(&self, workers: usize) -> Vec<Option<Snapshot>> {
        let until = Instant::now() + PATIENCE;
        let answers: Vec<_> =
            (0..workers).map(|worker| self.ask(worker, |reply| StatsQuery::Counters { reply })).collect();
        let hear = |(worker, answer): (usize, Option<_>)| self.hear(worker, answer?, until);
        answers.into_iter().enumerate().map(hear).collect()
    }

    /// The connections of `worker` in the slots from `from` on, as many as it looks at for one letter; `None` if it does not answer in
    /// time.
    pub fn page(&self, worker: usize, from: usize) -> Option<ConnPage> {
        let until = Instant::now() + PATIENCE;
        let look = |reply| StatsQuery::Connections { from, most: SLOTS_PER_QUERY, reply };
        self.hear(worker, self.ask(worker, look)?, until)
    }

    /// Asks `worker`, unless there is no way to it or it still owes an answer.
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

    fn hear<T: Send + 'static>(&self, worker: usize, answer: Receiver<T>, until: Instant) -> Option<T> {
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(told) => Some(told),
            Err(RecvTimeoutError::Timeout) => {
                self.late().insert(worker, Box::new(move || answer.try_recv().err() == Some(TryRecvError::Empty)));
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn late(&self) -> MutexGuard<'_, BTreeMap<usize, IsDue>> {
        // It is whole after every step.
        self.0.late.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::mailbox::{self, mailbox};
    use linerate_bypass::{AppMsg, AppSender, ConnId, Origin, Transport};
    use std::convert::Infallible;

    struct Silent;

    impl Service for Silent {
        type Conn = ();
        type Message = Infallible;

        fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}
    }

    type Mail = mailbox::Receiver<AppMsg<Infallible>>;

    fn way_to(workers: usize, room: usize) -> (Way, Vec<Mail>) {
        let (senders, mails): (Vec<_>, Vec<_>) = (0..workers).map(|_| mailbox(room)).unzip();
        let way = Way::default();
        let make = way.told_by(Arc::new(|_: WorkerCtx<_>| Silent));
        make(WorkerCtx { worker: 0, workers, app_sender: AppSender::new(senders) });
        (way, mails)
    }

    fn answer(mail: &mut Mail, worker: usize) {
        if let Some(AppMsg::Query(look)) = mail.receive()
            && let StatsQuery::Counters { reply } = *look
        {
            // Who has stopped waiting is no error.
            let _ = reply.send(Snapshot { worker, ..Snapshot::default() });
        }
    }

    #[test]
    fn nobody_answers_before_there_is_a_worker() {
        assert_eq!(Way::default().snapshots(2), [None, None]);
        assert_eq!(Way::default().page(0, 0), None);
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
        assert_eq!(way.0.ask.get().map(|ask| ask(0, StatsQuery::Counters { reply: channel().0 })), Some(true));
        let asking = std::thread::spawn(move || (Instant::now(), way.snapshots(2)));
        while mails[1].is_empty() {
            std::thread::yield_now();
        }
        drop(mails[1].receive());
        let (began, told) = asking.join().unwrap();
        assert_eq!(told, [None, None]);
        assert!(began.elapsed() < PATIENCE);
    }

    #[test]
    fn who_owes_an_answer_is_neither_waited_for_nor_asked_again_until_it_has_answered() {
        let (way, mut mails) = way_to(1, 8);
        assert_eq!(way.snapshots(1), [None]);
        let began = Instant::now();
        for _ in 0..100 {
            assert_eq!((way.snapshots(1), way.page(0, 0)), (vec![None], None));
        }
        assert!(began.elapsed() < PATIENCE);
        answer(&mut mails[0], 0);
        assert!(mails[0].is_empty(), "asked again");
        let asking = std::thread::spawn(move || way.snapshots(1));
        while mails[0].is_empty() {
            std::thread::yield_now();
        }
        answer(&mut mails[0], 0);
        assert!(asking.join().unwrap()[0].is_some());
    }
}
