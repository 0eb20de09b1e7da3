//! One end: how it gets its connection, and what it does with it.

use super::parameters::{Ask, Place};
use super::prepared::Prepared;
use super::run::Run;
use super::{Parameters, PerfError, Refusal, Test};
use linerate_bypass::time::{Clock, Duration, Instant};
use linerate_rdma::provider::{CmConnParam, CmEvent, CmEventKind, DeviceLimits, PrivateData, Provider, TransportKind};
use linerate_rdma::verbs::{CmId, CmNotification, Error, EventChannel, Init, New, Qp};
use linerate_rdma::wait_readable;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// How long an address or a route is looked for.
const RESOLVE_MS: u32 = 2000;
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// How often the device asks again when there is no answer, and how often when there is no buffer: for ever.
const RETRIES: u8 = 7;
/// How often an end that waits for its connection looks whether it is to end.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// Turns in which nothing happened after which the time is looked at …
const TURNS: u32 = 1024;
/// … how often the connection manager is asked then …
const ASK_MANAGER: Duration = Duration::from_millis(10);
/// … and after how long the peer is.
const ASK_PEER: Duration = Duration::from_secs(10);

/// What a turn has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing was to be done.
    Idle,
    /// Something was.
    Worked,
    /// A message was sent, so long after the one before.
    Trip(Duration),
    /// All is done.
    Over,
}

/// What an end has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// How.
    pub parameters: Parameters,
    /// Whether it was the client.
    pub is_client: bool,
    /// Its messages; where it has none that are measured, those that came to it.
    pub messages: u64,
    /// How long they took; nothing where none are.
    pub elapsed: Duration,
}

/// An end of a test.
pub struct End<C: Provider> {
    stage: Stage<C>,
    /// Where a server listens.
    listener: Option<CmId<C>>,
    channel: EventChannel<C>,
    provider: Arc<C>,
    limits: DeviceLimits,
    message: u32,
    purpose: Purpose,
    /// Turns without anything to be done.
    idle: u32,
    /// When the connection manager was asked last, and something was heard.
    asked: Option<Instant>,
    heard: Option<Instant>,
}

#[derive(Clone, Copy)]
enum Purpose {
    Serve(Test),
    Ask(Parameters),
}

enum Stage<C: Provider> {
    /// A server that nobody has asked.
    Waiting,
    /// A connection that is being made.
    Making { making: Making<C>, until: Option<Instant> },
    /// One that is made. What is measured goes before its identifier.
    Made { run: Run<C>, id: CmId<C> },
}

struct Making<C: Provider> {
    parameters: Parameters,
    prepared: Prepared<C>,
    /// Until it is asked for, a client's has no state; then it can take buffers.
    qp: Option<Qp<C, Init>>,
    new: Option<Qp<C, New>>,
    /// The peer's memory, as far as it is known.
    place: Option<Place>,
    id: CmId<C>,
}

impl<C: Provider> End<C> {
    /// A server for one client, of `test`, listening at `address`.
    pub fn server(provider: &Arc<C>, test: Test, address: SocketAddr) -> Result<Self, PerfError> {
        let mut end = End::new(provider, Purpose::Serve(test))?;
        let mut listener = end.channel.id()?;
        listener.listen(address, 16)?;
        end.listener = Some(listener);
        Ok(end)
    }

    /// A client of the server at `remote`.
    pub fn client(provider: &Arc<C>, parameters: Parameters, remote: SocketAddr) -> Result<Self, PerfError> {
        let mut end = End::new(provider, Purpose::Ask(parameters))?;
        parameters.check(&end.limits, end.message).map_err(PerfError::Here)?;
        end.begin(parameters, remote)?;
        Ok(end)
    }

    fn new(provider: &Arc<C>, purpose: Purpose) -> Result<Self, PerfError> {
        let limits = provider.limits().map_err(Error::of("query the device"))?;
        let message = provider.port(1).map_err(Error::of("query the device's port"))?.message;
        Ok(End {
            stage: Stage::Waiting,
            listener: None,
            channel: EventChannel::new(provider)?,
            provider: provider.clone(),
            limits,
            message,
            purpose,
            idle: 0,
            asked: None,
            heard: None,
        })
    }

    fn is_iwarp(&self) -> bool {
        self.limits.transport == TransportKind::Iwarp
    }

    /// A client begins.
    fn begin(&mut self, parameters: Parameters, remote: SocketAddr) -> Result<(), PerfError> {
        let (prepared, qp) = Prepared::new(&self.provider, &self.limits, &parameters, true)?;
        let mut id = self.channel.id()?;
        id.resolve_address(remote, RESOLVE_MS).map_err(|error| {
            tracing::debug!("{error}");
            PerfError::Unreachable
        })?;
        let making = Making { parameters, prepared, qp: None, new: Some(qp), place: None, id };
        self.stage = Stage::Making { making, until: None };
        Ok(())
    }

    /// Does all until the test is over, or `is_over` says so. `trip` is told how long each message took there and back.
    pub fn run(
        mut self,
        clock: &Clock,
        is_over: impl Fn() -> bool,
        mut trip: impl FnMut(Duration),
    ) -> Result<Outcome, PerfError> {
        loop {
            match self.turn(&|| clock.now())? {
                Turn::Over => return Ok(self.outcome()),
                Turn::Trip(time) => trip(time),
                Turn::Worked => {}
                Turn::Idle if matches!(self.stage, Stage::Made { .. }) => std::hint::spin_loop(),
                Turn::Idle => wait_readable([self.channel.as_fd()], LOOK_AROUND)?,
            }
            if is_over() {
                return Err(PerfError::Interrupted(self.outcome().messages));
            }
        }
    }

    /// What was done until now.
    pub fn outcome(&self) -> Outcome {
        let is_client = matches!(self.purpose, Purpose::Ask(_));
        let parameters = match (&self.stage, self.purpose) {
            (Stage::Made { run, .. }, _) => run.parameters(),
            (Stage::Making { making, .. }, _) => making.parameters,
            (Stage::Waiting, Purpose::Ask(parameters)) => parameters,
            (Stage::Waiting, Purpose::Serve(test)) => Parameters::new(test),
        };
        match &self.stage {
            Stage::Made { run, .. } => {
                Outcome { parameters, is_client, messages: run.messages(), elapsed: run.elapsed() }
            }
            _ => Outcome { parameters, is_client, messages: 0, elapsed: Duration::ZERO },
        }
    }

    /// Does what there is to be done. `now` tells the time when it matters.
    #[inline]
    pub fn turn(&mut self, now: &impl Fn() -> Instant) -> Result<Turn, PerfError> {
        let Stage::Made { run, .. } = &mut self.stage else { return self.make(now()) };
        match run.turn(now)? {
            // It may be told that it may begin.
            Turn::Idle if !run.is_begun() => {
                self.events(now())?;
                self.rest(now)
            }
            Turn::Idle => self.rest(now),
            turn => {
                self.idle = 0;
                self.heard = None;
                Ok(turn)
            }
        }
    }

    /// Nothing is to be done for the test: from time to time it looks whether there is still somebody.
    fn rest(&mut self, now: &impl Fn() -> Instant) -> Result<Turn, PerfError> {
        self.idle += 1;
        if self.idle < TURNS {
            return Ok(Turn::Idle);
        }
        self.idle = 0;
        let now = now();
        if now.since(*self.asked.get_or_insert(now)) >= ASK_MANAGER {
            self.asked = Some(now);
            self.events(now)?;
        }
        if now.since(*self.heard.get_or_insert(now)) >= ASK_PEER
            && let Stage::Made { run, .. } = &mut self.stage
        {
            self.heard = Some(now);
            run.probe()?;
        }
        Ok(Turn::Idle)
    }

    /// A client whose connection has been asked for goes on as if it had asked for something else.
    #[cfg(test)]
    pub(super) fn pretend(&mut self, other: Parameters) -> bool {
        match &mut self.stage {
            Stage::Making { making: Making { qp: Some(_), parameters, .. }, .. } => {
                *parameters = other;
                true
            }
            _ => false,
        }
    }

    /// The connection is being made, or waited for.
    fn make(&mut self, now: Instant) -> Result<Turn, PerfError> {
        let any = self.events(now)?;
        if let Stage::Making { until, .. } = &mut self.stage {
            let until = until.get_or_insert(now + CONNECT);
            if *until <= now {
                return Err(PerfError::TimedOut);
            }
        }
        Ok(if any { Turn::Worked } else { Turn::Idle })
    }

    /// Hears what the connection manager has to say. Returns whether it had.
    fn events(&mut self, now: Instant) -> Result<bool, PerfError> {
        let mut any = false;
        while let Some(news) = self.channel.next_event()? {
            any = true;
            match news {
                CmNotification::Request { id, event, .. } => self.request(id, &event, now),
                CmNotification::Event(event) => self.event(&event)?,
            }
        }
        Ok(any)
    }

    /// Somebody asks a server.
    fn request(&mut self, id: CmId<C>, event: &CmEvent, now: Instant) {
        let from = id.addresses().map_or_else(|| "somebody".to_owned(), |(_, remote)| remote.to_string());
        let refuse = |id: CmId<C>, why: &[u8]| {
            if let Err(error) = id.reject(why) {
                tracing::debug!("{error}");
            }
        };
        let ask = match Ask::read(event.private_data.bytes()) {
            None => {
                tracing::warn!("{from} is refused: it is another program");
                return refuse(id, b"this is linerate rdma perf, and you are not");
            }
            Some(ask) => ask.and_then(|ask| self.check(&id, ask)),
        };
        let ask = match ask {
            Ok(ask) => ask,
            Err(why) => {
                tracing::warn!("{from} is refused: {why}");
                return refuse(id, &why.write());
            }
        };
        if let Err((id, error)) = self.accept(id, ask, event, now) {
            tracing::warn!("{from} is refused: {error}");
            refuse(id, &Refusal::Failed.write());
        }
    }

    /// Whether it can be done that is asked for.
    fn check(&self, id: &CmId<C>, ask: Ask) -> Result<Ask, Refusal> {
        match self.purpose {
            Purpose::Serve(test) if !test.serves(ask.parameters.test) => return Err(Refusal::Test(test)),
            _ if !matches!(self.stage, Stage::Waiting) => return Err(Refusal::Busy),
            _ if !id.is_here() => return Err(Refusal::Elsewhere),
            _ => {}
        }
        ask.parameters.check(&self.limits, self.message)?;
        Ok(ask)
    }

    /// Serves who asks. It comes back with what stands in the way.
    fn accept(&mut self, mut id: CmId<C>, ask: Ask, event: &CmEvent, now: Instant) -> Result<(), (CmId<C>, Error)> {
        let Ask { parameters, place } = ask;
        let prepared = Prepared::new(&self.provider, &self.limits, &parameters, false);
        let made = prepared.and_then(|(prepared, qp)| {
            let qp = prepared.init(qp, &id)?;
            let reads = (event.initiator_depth, event.responder_resources);
            let told = self.told(qp.number(), &parameters, reads, &prepared.place().write_answer());
            if self.is_iwarp() {
                id.accept(&told)?;
                return Ok((prepared, Err(qp)));
            }
            let qp = qp.to_rtr_by_cm(&id)?.to_rts_by_cm(&id)?;
            id.accept(&told)?;
            Ok((prepared, Ok(qp)))
        });
        self.stage = match made {
            Ok((prepared, Ok(qp))) => Stage::Made { run: Run::new(parameters, false, prepared, qp, place), id },
            // Over iWARP the connection manager makes it ready.
            Ok((prepared, Err(qp))) => {
                let (qp, new, place, until) = (Some(qp), None, Some(place), Some(now + CONNECT));
                Stage::Making { making: Making { parameters, prepared, qp, new, place, id }, until }
            }
            Err(error) => return Err((id, error)),
        };
        Ok(())
    }

    /// What the connection manager is told, of a peer that asks for and answers so many READs.
    fn told(&self, qp: u32, parameters: &Parameters, (asked, answered): (u8, u8), private_data: &[u8]) -> CmConnParam {
        CmConnParam {
            qp,
            responder_resources: self.limits.responder_resources.min(asked),
            initiator_depth: self.limits.initiator_depth.min(answered).min(parameters.reads),
            retries: RETRIES,
            rnr_retries: RETRIES,
            is_shared: false,
            private_data: PrivateData::new(private_data),
        }
    }

    /// Something has happened to an identifier.
    fn event(&mut self, event: &CmEvent) -> Result<(), PerfError> {
        use CmEventKind::*;
        match std::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Made { mut run, id } => {
                if id.handle() == event.id {
                    match event.kind {
                        Established => run.established(),
                        Disconnected | Removed | AddressChanged | TimeWaitExit | Failed | Unreachable | Rejected => {
                            run.gone();
                        }
                        _ => {}
                    }
                }
                self.stage = Stage::Made { run, id };
            }
            Stage::Making { making, until } if making.id.handle() == event.id => {
                self.stage = self.step(making, until, event)?;
            }
            other => self.stage = other,
        }
        Ok(())
    }

    /// What an event leads to for a connection that is being made.
    fn step(&self, mut making: Making<C>, until: Option<Instant>, event: &CmEvent) -> Result<Stage<C>, PerfError> {
        use CmEventKind::*;
        let Making { parameters, prepared, qp, new, place, id } = &mut making;
        match event.kind {
            AddressResolved if !id.is_here() => return Err(PerfError::Unreachable),
            AddressResolved => id.resolve_route(RESOLVE_MS)?,
            RouteResolved => {
                if let Some(new) = new.take() {
                    let made = prepared.init(new, id)?;
                    let ask = Ask { parameters: *parameters, place: prepared.place() };
                    id.connect(&self.told(made.number(), parameters, (u8::MAX, u8::MAX), &ask.write()))?;
                    *qp = Some(made);
                }
            }
            Response | Established => {
                let Some(qp) = qp.take() else { return Err(PerfError::Stranger) };
                let answer = || Place::read_answer(event.private_data.bytes());
                let is_client = place.is_none();
                let place = place.or_else(answer).ok_or(PerfError::Stranger)?;
                let qp = if event.kind == Established {
                    qp.rts_by_iwarp()
                } else {
                    let ready = qp.reinit_by_cm(id)?.to_rtr_by_cm(id)?.to_rts_by_cm(id)?;
                    id.establish()?;
                    ready
                };
                let Making { parameters, prepared, id, .. } = making;
                let run = Run::new(parameters, is_client, prepared, qp, place);
                return Ok(Stage::Made { run, id });
            }
            Rejected => {
                return Err(match Refusal::read(event.private_data.bytes()) {
                    Some(why) => PerfError::Refused(why),
                    // A device fills what a program said with zeros, and says nothing of one that is not there.
                    None if event.private_data.bytes().iter().all(|byte| *byte == 0) => PerfError::NobodyListens,
                    None => PerfError::Stranger,
                });
            }
            AddressFailed | RouteFailed | Unreachable | Removed => return Err(PerfError::Unreachable),
            Failed | Disconnected => return Err(PerfError::Lost(0)),
            _ => {}
        }
        Ok(Stage::Making { making, until })
    }
}

impl<C: Provider> Drop for End<C> {
    fn drop(&mut self) {
        if let Stage::Made { id, .. } = &mut self.stage
            && let Err(error) = id.disconnect()
        {
            tracing::debug!("{error}");
        }
    }
}
