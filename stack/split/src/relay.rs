//! Relay: the worker's end, a service that forwards all events and commands.

use crate::Config;
use crate::flow::{Close, Flow};
use crate::queues::{BATCH, Command, Commands, DATAGRAMS, Event, Events, SharedQueues};
use crate::table::Table;
use linerate_service::mailbox::{Receiver, Sender};
use linerate_service::time::Duration;
use linerate_service::{
    Bytes, CloseReason, ConnId, ConnectError, Datagram, Origin, Service, Summary, Transport, WorkerCtx,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum slices of all connections that the service has not consumed and that may hold packets of the port. Further
/// ones are copied: connections whose services wait for more data must not stall others.
const SLICES: u64 = 4096;
/// Maximum slices of all connections that wait for room in the transport and may hold packets of the port. Further ones
/// are copied: connections whose peers do not read must not stall others.
const UNSENT: usize = 2048;
/// Maximum events that wait for an empty batch before connections from peers are refused. Without this limit their
/// number would be unbounded while the service is blocked.
const BACKLOG: usize = 1 << 16;
/// Retry interval of a sleeping worker with data that wait to be passed on.
const MOMENT: Duration = Duration::from_micros(50);

/// Service on a worker that forwards events to the actual service's thread, and its commands to the worker.
pub struct Relay {
    window: usize,
    yields: bool,
    shared: Arc<SharedQueues>,
    events: Sender<Events>,
    empty: Receiver<Events>,
    /// Batch being filled.
    batch: Events,
    commands_back: Sender<Commands>,
    flows: Table<Flow>,
    /// Connections with data to pass on when there is room.
    waiting: Vec<ConnId>,
    /// Reused buffer.
    spare: Vec<ConnId>,
    /// Slices passed on, over all connections, and the number of them that were consumed at the last check.
    slices: u64,
    slices_done: u64,
    /// Slices that wait for room in the transport, over all connections.
    unsent: usize,
    /// Datagrams dropped for lack of room, and connections refused because the service was blocked.
    dropped: u64,
    refused: u64,
}

impl Relay {
    pub(crate) fn new(
        config: &Config,
        shared: Arc<SharedQueues>,
        events: Sender<Events>,
        empty: Receiver<Events>,
        commands_back: Sender<Commands>,
    ) -> Self {
        Relay {
            window: config.window,
            yields: config.co_scheduled,
            shared,
            events,
            empty,
            batch: Events::default(),
            commands_back,
            flows: Table::new(),
            waiting: Vec::new(),
            spare: Vec::new(),
            slices: 0,
            slices_done: 0,
            unsent: 0,
            dropped: 0,
            refused: 0,
        }
    }

    /// Starts the relay on the worker of `ctx`, which the service's thread can reach from now on.
    pub fn attach(self, ctx: WorkerCtx<Commands>) -> Self {
        let _ = self.shared.worker_sender.set(ctx.app_sender);
        self
    }

    /// Reports the end of the worker to the service's thread. Adds copied bytes and drops to the counters of the
    /// worker.
    pub fn end(self, summary: &mut Summary) {
        summary.copied_bytes += self.shared.copied.load(Ordering::Relaxed);
        summary.drop_for("no room between worker and service: datagram", self.dropped);
        summary.drop_for("no room between worker and service: connection refused", self.refused);
    }

    fn push(&mut self, event: Event) {
        self.batch.items.push(event);
        if self.batch.items.len() >= BATCH {
            self.flush();
        }
    }

    /// Returns whether only mandatory events may be passed on for now.
    fn is_full(&self) -> bool {
        self.batch.items.len() >= BATCH
    }

    fn flush(&mut self) {
        if self.batch.items.is_empty() && self.batch.datagrams.is_empty() {
            return;
        }
        if let Some(empty) = self.empty.receive() {
            let batch = std::mem::replace(&mut self.batch, empty);
            // The mailbox has room for all existing batches.
            let _ = self.events.send(batch);
        }
    }

    fn has_slices(&mut self) -> bool {
        if self.slices - self.slices_done >= SLICES {
            self.slices_done = self.shared.slices_done.load(Ordering::Relaxed);
        }
        self.slices - self.slices_done < SLICES
    }

    /// Passes on data received on `conn`, within the window of the service.
    fn pass(&mut self, net: &mut impl Transport, conn: ConnId) {
        loop {
            let (full, keeps) = (self.is_full(), self.has_slices());
            let Some(flow) = self.flows.get_mut(conn) else { return };
            let allowance = flow.allowance(self.window);
            if allowance == 0 {
                flow.blocked = true;
                return;
            }
            match if full { None } else { net.take(conn, allowance) } {
                Some(mut bytes) => {
                    flow.passed(bytes.len());
                    self.slices += 1;
                    if !keeps {
                        self.shared.copied.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        bytes = Bytes::from(bytes.to_vec());
                    }
                    self.push(Event::Data(conn, bytes));
                }
                // No room here, or no memory in the transport.
                None if net.received(conn) > 0 => {
                    if !flow.waits {
                        flow.waits = true;
                        self.waiting.push(conn);
                    }
                    return;
                }
                None => return,
            }
        }
    }

    fn report_room(&mut self, conn: ConnId) {
        let window = self.window;
        if let Some(room) = self.flows.get_mut(conn).and_then(|flow| flow.room(window)) {
            self.push(Event::Room(conn, room));
        }
    }

    fn close(&mut self, net: &mut impl Transport, conn: ConnId, close: Close) {
        if let Some(flow) = self.flows.get_mut(conn) {
            flow.close(net, conn, close);
        }
    }

    fn execute(&mut self, net: &mut impl Transport, command: Command) {
        match command {
            Command::Send(conn, bytes) => {
                if let Some(flow) = self.flows.get_mut(conn) {
                    let before = flow.unsent_slices();
                    let copied = flow.send(net, conn, bytes, self.unsent < UNSENT);
                    self.unsent = self.unsent + flow.unsent_slices() - before;
                    if copied > 0 {
                        self.shared.copied.fetch_add(copied as u64, Ordering::Relaxed);
                    }
                    self.report_room(conn);
                }
            }
            Command::Consumed { conn, bytes, slices } => {
                if let Some(flow) = self.flows.get_mut(conn) {
                    flow.consumed(bytes, slices);
                    if std::mem::take(&mut flow.blocked) {
                        self.pass(net, conn);
                    }
                }
            }
            Command::WaitsForRoom(conn) => {
                if let Some(flow) = self.flows.get_mut(conn) {
                    flow.wait_for_room();
                    self.report_room(conn);
                }
            }
            Command::Close(conn) => self.close(net, conn, Close::Half),
            Command::LingeringClose(conn) => self.close(net, conn, Close::Lingering),
            Command::Abort(conn) => net.abort(conn),
            Command::Connect(remote, token) => net.connect(remote, token),
        }
    }
}

/// Ends the service's thread when the worker ends in any way.
impl Drop for Relay {
    fn drop(&mut self) {
        self.batch.items.push(Event::End);
        // The mailbox has room for all existing batches.
        let _ = self.events.send(std::mem::take(&mut self.batch));
    }
}

impl Service for Relay {
    type Conn = ();
    type Message = Commands;

    fn start(&mut self, _: &mut impl Transport) {
        self.push(Event::Start);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) {
        let addresses = net.local_addr(conn).zip(net.peer_addr(conn));
        match addresses {
            Some((local, peer)) if self.batch.items.len() < BACKLOG || origin != Origin::Accepted => {
                self.flows.insert(conn, Flow::default());
                // The addresses belong to the batch that the event is in.
                self.batch.addresses.push([local, peer]);
                self.push(Event::Opened(conn, origin));
            }
            _ => {
                self.refused += 1;
                net.abort(conn);
            }
        }
    }

    fn failed(&mut self, _: &mut impl Transport, token: u64, error: ConnectError) {
        self.push(Event::Failed(token, error));
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        self.pass(net, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        if let Some(flow) = self.flows.get_mut(conn) {
            let before = flow.unsent_slices();
            flow.send_more(net, conn);
            self.unsent -= before - flow.unsent_slices();
            self.report_room(conn);
        }
    }

    fn peer_closed(&mut self, _: &mut impl Transport, conn: ConnId, (): &mut ()) {
        if self.flows.get(conn).is_some() {
            self.push(Event::PeerClosed(conn));
        }
    }

    fn message(&mut self, net: &mut impl Transport, mut commands: Commands) {
        for command in commands.items.drain(..) {
            self.execute(net, command);
        }
        for datagram in commands.datagrams.drain(..) {
            // A datagram without room in the transport is lost, which UDP permits.
            self.dropped += u64::from(net.send_datagram(datagram).is_err());
        }
        let _ = self.commands_back.send(commands);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        if !self.waiting.is_empty() && !self.is_full() {
            let mut waiting = std::mem::replace(&mut self.waiting, std::mem::take(&mut self.spare));
            for conn in waiting.drain(..) {
                if let Some(flow) = self.flows.get_mut(conn) {
                    flow.waits = false;
                    self.pass(net, conn);
                }
            }
            self.spare = waiting;
        }
        self.flush();
        if self.yields {
            std::thread::yield_now();
        }
        let waits = !self.waiting.is_empty() || !self.batch.items.is_empty() || !self.batch.datagrams.is_empty();
        waits.then_some(MOMENT)
    }

    fn datagram(&mut self, _: &mut impl Transport, datagram: Datagram) {
        if self.batch.datagrams.len() >= DATAGRAMS {
            self.flush();
        }
        if self.batch.datagrams.len() < DATAGRAMS {
            self.batch.datagrams.push(datagram);
        } else {
            self.dropped += 1;
        }
    }

    fn closed(&mut self, _: &mut impl Transport, conn: ConnId, (): (), reason: CloseReason) {
        if let Some(flow) = self.flows.remove(conn) {
            self.unsent -= flow.unsent_slices();
            self.push(Event::Closed(conn, reason));
        }
    }
}
