//! One end of a test: connection setup, and the test loop.

use super::parameters::{RemoteMemory, TestRequest};
use super::prepared::Prepared;
use super::run::Run;
use super::{Parameters, PerfError, Refusal, Test};
use linerate_bypass::time::{Clock, Duration, Instant};
use linerate_rdma::provider::{
    CmConnParam, CmEvent, CmEventKind, DeviceLimits, PathOptions, PrivateData, Provider, QpOptions, Retry,
    TransportKind,
};
use linerate_rdma::verbs::{CmId, CmNotification, Error, EventChannel, Init, New, Qp};
use linerate_rdma::wait_readable;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Time-out of address and route resolution.
const RESOLVE_MS: u32 = 2000;
/// Maximum duration of connection setup.
const CONNECT: Duration = Duration::from_secs(10);
/// Transport retries, and unlimited retries after receiver-not-ready.
pub(super) const OPTIONS: QpOptions = QpOptions {
    retry: Retry { rnr_retries: 7, ..Retry::DEFAULT },
    path: PathOptions { traffic_class: 0, service_level: 0, pkey_index: 0 },
};
/// Interval at which a waiting end checks whether it is interrupted.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// Idle turns between readings of the clock.
const TURNS: u32 = 1024;
/// Interval of connection manager polls while idle.
const ASK_MANAGER: Duration = Duration::from_millis(10);
/// Silence after which the peer is probed.
const ASK_PEER: Duration = Duration::from_secs(10);

/// Result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// No action.
    Idle,
    /// Progress.
    Worked,
    /// Message sent, with the time since the previous one.
    Trip(Duration),
    /// Test complete.
    Over,
}

/// Results of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Test parameters.
    pub parameters: Parameters,
    /// True for the client.
    pub is_client: bool,
    /// Messages sent; messages received, if this end sends none.
    pub messages: u64,
    /// Duration; zero if this end measures nothing.
    pub elapsed: Duration,
}

/// End of a test.
pub struct End<C: Provider> {
    stage: Stage<C>,
    /// Listening identifier of a server.
    listener: Option<CmId<C>>,
    channel: EventChannel<C>,
    provider: Arc<C>,
    limits: DeviceLimits,
    message: u32,
    purpose: Purpose,
    /// Consecutive idle turns.
    idle: u32,
    /// Time of the last connection manager poll and of the last progress.
    events_checked: Option<Instant>,
    probed: Option<Instant>,
}

#[derive(Clone, Copy)]
enum Purpose {
    Serve(Test),
    Connect(Parameters),
}

enum Stage<C: Provider> {
    /// Server without a client.
    Waiting,
    /// Connection being established.
    Making { making: Making<C>, until: Option<Instant> },
    /// Connection established. The run is dropped before the identifier.
    Made { run: Run<C>, id: CmId<C> },
}

struct Making<C: Provider> {
    parameters: Parameters,
    prepared: Prepared<C>,
    /// Queue pair in INIT; a client's is still in RESET until the route is resolved.
    qp: Option<Qp<C, Init>>,
    new: Option<Qp<C, New>>,
    /// Memory of the peer, once known.
    memory: Option<RemoteMemory>,
    id: CmId<C>,
}

impl<C: Provider> End<C> {
    /// Creates a server of `test` for one client, listening on `address`.
    pub fn server(provider: &Arc<C>, test: Test, address: SocketAddr) -> Result<Self, PerfError> {
        let mut end = End::new(provider, Purpose::Serve(test))?;
        let mut listener = end.channel.id()?;
        listener.listen(address, 16)?;
        end.listener = Some(listener);
        Ok(end)
    }

    /// Creates a client of the server at `remote`.
    pub fn client(provider: &Arc<C>, parameters: Parameters, remote: SocketAddr) -> Result<Self, PerfError> {
        let mut end = End::new(provider, Purpose::Connect(parameters))?;
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
            events_checked: None,
            probed: None,
        })
    }

    fn is_iwarp(&self) -> bool {
        self.limits.transport == TransportKind::Iwarp
    }

    /// Starts connecting a client.
    fn begin(&mut self, parameters: Parameters, remote: SocketAddr) -> Result<(), PerfError> {
        let (prepared, qp) = Prepared::new(&self.provider, &self.limits, &parameters, true)?;
        let mut id = self.channel.id()?;
        id.resolve_address(remote, RESOLVE_MS).map_err(|error| {
            tracing::debug!("{error}");
            PerfError::Unreachable
        })?;
        let making = Making { parameters, prepared, qp: None, new: Some(qp), memory: None, id };
        self.stage = Stage::Making { making, until: None };
        Ok(())
    }

    /// Runs the test until it completes or `is_over` returns true. `trip` receives the round-trip time of each
    /// message.
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

    /// Returns the results so far.
    pub fn outcome(&self) -> Outcome {
        let is_client = matches!(self.purpose, Purpose::Connect(_));
        let parameters = match (&self.stage, self.purpose) {
            (Stage::Made { run, .. }, _) => run.parameters(),
            (Stage::Making { making, .. }, _) => making.parameters,
            (Stage::Waiting, Purpose::Connect(parameters)) => parameters,
            (Stage::Waiting, Purpose::Serve(test)) => Parameters::new(test),
        };
        match &self.stage {
            Stage::Made { run, .. } => {
                Outcome { parameters, is_client, messages: run.messages(), elapsed: run.elapsed() }
            }
            _ => Outcome { parameters, is_client, messages: 0, elapsed: Duration::ZERO },
        }
    }

    /// Performs one turn. `now` is called only when the time is needed.
    #[inline]
    pub fn turn(&mut self, now: &impl Fn() -> Instant) -> Result<Turn, PerfError> {
        let Stage::Made { run, .. } = &mut self.stage else { return self.make(now()) };
        match run.turn(now)? {
            // The connection may have been established at the other end.
            Turn::Idle if !run.is_begun() => {
                self.events(now())?;
                self.rest(now)
            }
            Turn::Idle => self.rest(now),
            turn => {
                self.idle = 0;
                self.probed = None;
                Ok(turn)
            }
        }
    }

    /// Handles an idle turn: checks from time to time that the peer is alive.
    fn rest(&mut self, now: &impl Fn() -> Instant) -> Result<Turn, PerfError> {
        self.idle += 1;
        if self.idle < TURNS {
            return Ok(Turn::Idle);
        }
        self.idle = 0;
        let now = now();
        if now.since(*self.events_checked.get_or_insert(now)) >= ASK_MANAGER {
            self.events_checked = Some(now);
            self.events(now)?;
        }
        if now.since(*self.probed.get_or_insert(now)) >= ASK_PEER
            && let Stage::Made { run, .. } = &mut self.stage
        {
            self.probed = Some(now);
            run.probe()?;
        }
        Ok(Turn::Idle)
    }

    /// Makes a client with a pending connect request continue with other parameters.
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

    /// Advances connection setup.
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

    /// Processes connection manager events. Returns true if there were any.
    fn events(&mut self, now: Instant) -> Result<bool, PerfError> {
        let mut any = false;
        while let Some(notification) = self.channel.next_event()? {
            any = true;
            match notification {
                CmNotification::Request { id, event, .. } => self.request(id, &event, now),
                CmNotification::Event(event) => self.event(&event)?,
            }
        }
        Ok(any)
    }

    /// Handles a connect request at a server.
    fn request(&mut self, id: CmId<C>, event: &CmEvent, now: Instant) {
        let from = id.addresses().map_or_else(|| "unknown peer".to_owned(), |(_, remote)| remote.to_string());
        let refuse = |id: CmId<C>, why: &[u8]| {
            if let Err(error) = id.reject(why) {
                tracing::debug!("{error}");
            }
        };
        let request = match TestRequest::read(event.private_data.bytes()) {
            None => {
                tracing::warn!("{from} is refused: it is another program");
                return refuse(id, b"linerate rdma perf: unknown request");
            }
            Some(request) => request.and_then(|request| self.check(&id, request)),
        };
        let request = match request {
            Ok(request) => request,
            Err(why) => {
                tracing::warn!("{from} is refused: {why}");
                return refuse(id, &why.write());
            }
        };
        if let Err((id, error)) = self.accept(id, request, event, now) {
            tracing::warn!("{from} is refused: {error}");
            refuse(id, &Refusal::Failed.write());
        }
    }

    /// Checks that the requested test can be done.
    fn check(&self, id: &CmId<C>, request: TestRequest) -> Result<TestRequest, Refusal> {
        match self.purpose {
            Purpose::Serve(test) if !test.serves(request.parameters.test) => return Err(Refusal::Test(test)),
            _ if !matches!(self.stage, Stage::Waiting) => return Err(Refusal::Busy),
            _ if !id.is_on_device() => return Err(Refusal::Elsewhere),
            _ => {}
        }
        request.parameters.check(&self.limits, self.message)?;
        Ok(request)
    }

    /// Accepts a client. Returns the identifier with the error on failure.
    fn accept(
        &mut self,
        mut id: CmId<C>,
        request: TestRequest,
        event: &CmEvent,
        now: Instant,
    ) -> Result<(), (CmId<C>, Error)> {
        let TestRequest { parameters, memory } = request;
        let prepared = Prepared::new(&self.provider, &self.limits, &parameters, false);
        let made = prepared.and_then(|(prepared, qp)| {
            let qp = prepared.init(qp, &id)?;
            let reads = (event.initiator_depth, event.responder_resources);
            let params = self.connect_params(qp.number(), &parameters, reads, &prepared.memory().write_answer());
            if self.is_iwarp() {
                id.accept(&params)?;
                return Ok((prepared, Err(qp)));
            }
            let qp = qp.to_rtr_by_cm(&id, &OPTIONS)?.to_rts_by_cm(&id, &OPTIONS)?;
            id.accept(&params)?;
            Ok((prepared, Ok(qp)))
        });
        self.stage = match made {
            Ok((prepared, Ok(qp))) => Stage::Made { run: Run::new(parameters, false, prepared, qp, memory), id },
            // Over iWARP the connection manager moves the queue pair to RTS.
            Ok((prepared, Err(qp))) => {
                let (qp, new, memory, until) = (Some(qp), None, Some(memory), Some(now + CONNECT));
                Stage::Making { making: Making { parameters, prepared, qp, new, memory, id }, until }
            }
            Err(error) => return Err((id, error)),
        };
        Ok(())
    }

    /// Returns the connection parameters for a peer with these READ limits.
    fn connect_params(
        &self,
        qp: u32,
        parameters: &Parameters,
        (reads, answered): (u8, u8),
        private_data: &[u8],
    ) -> CmConnParam {
        CmConnParam {
            qp,
            responder_resources: self.limits.responder_resources.min(reads),
            initiator_depth: self.limits.initiator_depth.min(answered).min(parameters.reads),
            retries: OPTIONS.retry.retries,
            rnr_retries: OPTIONS.retry.rnr_retries,
            is_shared: false,
            private_data: PrivateData::new(private_data),
        }
    }

    /// Handles an event of an identifier.
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

    /// Advances a connection being established.
    fn step(&self, mut making: Making<C>, until: Option<Instant>, event: &CmEvent) -> Result<Stage<C>, PerfError> {
        use CmEventKind::*;
        let Making { parameters, prepared, qp, new, memory, id } = &mut making;
        match event.kind {
            AddressResolved if !id.is_on_device() => return Err(PerfError::Unreachable),
            AddressResolved => id.resolve_route(RESOLVE_MS)?,
            RouteResolved => {
                if let Some(new) = new.take() {
                    let made = prepared.init(new, id)?;
                    let request = TestRequest { parameters: *parameters, memory: prepared.memory() };
                    id.connect(&self.connect_params(made.number(), parameters, (u8::MAX, u8::MAX), &request.write()))?;
                    *qp = Some(made);
                }
            }
            Response | Established => {
                let Some(qp) = qp.take() else { return Err(PerfError::Stranger) };
                let answer = || RemoteMemory::read_answer(event.private_data.bytes());
                let is_client = memory.is_none();
                let memory = memory.or_else(answer).ok_or(PerfError::Stranger)?;
                let qp = if event.kind == Established {
                    qp.rts_by_iwarp()
                } else {
                    let ready =
                        qp.reinit_by_cm(id, &OPTIONS)?.to_rtr_by_cm(id, &OPTIONS)?.to_rts_by_cm(id, &OPTIONS)?;
                    id.establish()?;
                    ready
                };
                let Making { parameters, prepared, id, .. } = making;
                let run = Run::new(parameters, is_client, prepared, qp, memory);
                return Ok(Stage::Made { run, id });
            }
            Rejected => {
                return Err(match Refusal::read(event.private_data.bytes()) {
                    Some(why) => PerfError::Refused(why),
                    // Devices pad private data with zeros, also if there is none.
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
