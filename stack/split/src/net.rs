//! [`Transport`](linerate_service::Transport) of a service on its own thread.

use crate::Config;
use crate::queues::{BATCH, Command, Commands, DATAGRAMS, SharedQueues};
use crate::stream::Stream;
use crate::table::Table;
use linerate_service::mailbox::Receiver;
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, ConnId, Datagram, Timers, Transport, Unsent, WriteError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Minimum and maximum size of buffers that services write to.
const BUFFER_LEN: std::ops::RangeInclusive<usize> = 496..=16 << 10;

/// Connections of one service, and its commands to the worker.
pub(crate) struct Net {
    pub worker: usize,
    pub now: Instant,
    pub config: Config,
    shared: Arc<SharedQueues>,
    pub streams: Table<Stream>,
    pub timers: Timers,
    /// Batch being filled, and empty batches.
    commands: Commands,
    empty: Receiver<Commands>,
    /// Empty batch that was taken but not needed.
    spare: Option<Commands>,
    /// Connections whose peer has closed and whose last bytes have just been consumed.
    pub ended: Vec<ConnId>,
    /// Connections with a buffer being written.
    with_buffer: Vec<ConnId>,
    /// Connections that found no memory for a buffer.
    pub out_of_memory: Vec<ConnId>,
    /// True if the service has aborted a connection, or closed one with a lingering close, since its last burst.
    pub has_silenced: bool,
    /// Length of the last reserved buffer.
    reserved: usize,
    /// Slices consumed, over all connections.
    slices_done: u64,
}

impl Net {
    pub fn new(worker: usize, config: Config, shared: Arc<SharedQueues>, empty: Receiver<Commands>) -> Self {
        Net {
            worker,
            now: Instant::ZERO,
            config,
            shared,
            streams: Table::new(),
            timers: Timers::default(),
            commands: Commands::default(),
            empty,
            spare: None,
            ended: Vec::new(),
            with_buffer: Vec::new(),
            out_of_memory: Vec::new(),
            has_silenced: false,
            reserved: 0,
            slices_done: 0,
        }
    }

    /// Returns the connection, if it exists and was not reset.
    fn stream(&self, conn: ConnId) -> Option<&Stream> {
        self.streams.get(conn).filter(|stream| !stream.aborted)
    }

    pub fn stream_mut(&mut self, conn: ConnId) -> Option<&mut Stream> {
        self.streams.get_mut(conn).filter(|stream| !stream.aborted)
    }

    pub fn remove(&mut self, conn: ConnId) {
        if let Some(mut stream) = self.streams.remove(conn) {
            self.slices_done += stream.received.slices() as u64;
            self.timers.cancel(conn, &mut stream.timer);
        }
    }

    /// Queues data received on `conn`. Returns whether this requires a new `readable` event.
    pub fn receive(&mut self, conn: ConnId, bytes: Bytes) -> bool {
        let Some(stream) = self.streams.get_mut(conn).filter(|stream| !stream.aborted) else {
            self.slices_done += 1;
            return false;
        };
        stream.received.push(bytes);
        let is_new = !std::mem::replace(&mut stream.listed, true);
        if stream.received.is_scattered() {
            // Data that the service leaves unread are copied, since their slices may hold packets of the port.
            let before = (stream.received.len(), stream.received.slices());
            self.shared.copied.fetch_add(stream.received.gather() as u64, Ordering::Relaxed);
            self.has_consumed(conn, before);
        }
        is_new
    }

    /// Sends written data and commands to the worker.
    pub fn flush(&mut self) {
        while let Some(conn) = self.with_buffer.pop() {
            self.send_buffer(conn);
        }
        self.shared.slices_done.store(self.slices_done, Ordering::Relaxed);
        self.flush_commands();
    }

    fn flush_commands(&mut self) {
        if self.commands.items.is_empty() && self.commands.datagrams.is_empty() {
            return;
        }
        let Some(sender) = self.shared.worker_sender.get() else { return };
        if let Some(empty) = self.spare.take().or_else(|| self.empty.receive()) {
            let commands = std::mem::replace(&mut self.commands, empty);
            if let Err(commands) = sender.send_to_worker(self.worker, commands) {
                // The mailbox is full: retry later.
                self.spare = Some(std::mem::replace(&mut self.commands, commands));
            }
        }
    }

    /// Returns whether commands wait for room in the mailbox.
    pub fn has_unsent_commands(&self) -> bool {
        !self.commands.items.is_empty() || !self.commands.datagrams.is_empty()
    }

    fn command(&mut self, command: Command) {
        self.commands.items.push(command);
        if self.commands.items.len() >= BATCH {
            self.flush_commands();
        }
    }

    /// Accounts for consumption on `conn`, which had `before` bytes and slices.
    fn has_consumed(&mut self, conn: ConnId, before: (usize, usize)) {
        let window = self.config.window;
        let Some(stream) = self.streams.get_mut(conn) else { return };
        let slices = before.1 - stream.received.slices();
        let command = stream.consumed(conn, before.0 - stream.received.len(), slices, window);
        if stream.end_is_due() {
            self.ended.push(conn);
        }
        self.slices_done += slices as u64;
        if let Some(command) = command {
            self.command(command);
        }
    }

    /// Sends the written buffer of `conn`, if there is one.
    fn send_buffer(&mut self, conn: ConnId) {
        if let Some((mut buffer, written)) = self.streams.get_mut(conn).and_then(|stream| stream.buffer.take())
            && written > 0
        {
            buffer.truncate(written);
            self.command(Command::Send(conn, buffer.freeze()));
        }
    }

    /// Suppresses all events of `conn` except `closed`.
    fn silence(&mut self, conn: ConnId) {
        let Some(stream) = self.stream_mut(conn) else { return };
        stream.aborted = true;
        stream.buffer = None;
        let slices = stream.received.slices() as u64;
        stream.received.clear();
        if stream.finished {
            // The worker has already removed it.
            self.ended.push(conn);
        }
        self.slices_done += slices;
        self.has_silenced = true;
    }

    /// Records that the service found too little room on `conn`.
    fn wait_for_room(&mut self, conn: ConnId) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        stream.wants_room = true;
        if !std::mem::replace(&mut stream.waits_for_room, true) {
            self.send_buffer(conn);
            self.command(Command::WaitsForRoom(conn));
        }
    }

    /// Provides a buffer for up to `max` bytes after those written before.
    fn prepare_buffer(&mut self, conn: ConnId, max: usize) -> Option<()> {
        let stream = self.streams.get_mut(conn)?;
        if let Some((buffer, written)) = &stream.buffer {
            // The rest of the buffer is large enough.
            if buffer.len() - written >= max.min(*BUFFER_LEN.start() / 4) {
                return Some(());
            }
            self.send_buffer(conn);
        }
        let len = max.clamp(*BUFFER_LEN.start(), *BUFFER_LEN.end());
        let Some(buffer) = self.config.arena.alloc(len) else {
            if let Some(stream) = self.streams.get_mut(conn) {
                stream.wants_room = true;
            }
            self.out_of_memory.push(conn);
            return None;
        };
        self.streams.get_mut(conn)?.buffer = Some((buffer, 0));
        self.with_buffer.push(conn);
        Some(())
    }
}

impl Transport for Net {
    fn now(&self) -> Instant {
        self.now
    }

    fn worker(&self) -> usize {
        self.worker
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        Some(self.stream(conn)?.addresses[0])
    }

    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        Some(self.stream(conn)?.addresses[1])
    }

    fn received(&self, conn: ConnId) -> usize {
        self.stream(conn).map_or(0, |stream| stream.received.len())
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        self.stream(conn).map_or(&[], |stream| stream.received.front())
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        let Some(stream) = self.stream_mut(conn) else { return };
        let before = (stream.received.len(), stream.received.slices());
        stream.received.advance(n);
        self.has_consumed(conn, before);
    }

    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        let stream = self.stream_mut(conn)?;
        let before = (stream.received.len(), stream.received.slices());
        let taken = stream.received.take(max)?;
        self.has_consumed(conn, before);
        Some(taken)
    }

    fn send_space(&mut self, conn: ConnId) -> usize {
        match self.stream(conn) {
            Some(stream) if stream.closed => 0,
            Some(stream) if stream.credit > 0 => stream.credit,
            Some(_) => {
                self.wait_for_room(conn);
                0
            }
            None => 0,
        }
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        let Some(stream) = self.stream_mut(conn).filter(|stream| !stream.closed) else {
            return Err(Unsent { bytes, error: WriteError::Closed });
        };
        if bytes.len() > stream.credit {
            self.wait_for_room(conn);
            return Err(Unsent { bytes, error: WriteError::Full });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        stream.credit -= bytes.len();
        self.send_buffer(conn);
        self.command(Command::Send(conn, bytes));
        Ok(())
    }

    fn reserve(&mut self, conn: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        self.reserved = 0;
        if self.stream(conn).is_none_or(|stream| stream.closed) {
            return Err(WriteError::Closed);
        }
        if self.send_space(conn) == 0 || max == 0 || self.prepare_buffer(conn, max).is_none() {
            return Err(WriteError::Full);
        }
        let stream = self.streams.get_mut(conn).ok_or(WriteError::Closed)?;
        let credit = stream.credit;
        let (buffer, written) = stream.buffer.as_mut().ok_or(WriteError::Full)?;
        let free = &mut buffer[*written..];
        let len = free.len().min(max).min(credit);
        self.reserved = len;
        Ok(&mut free[..len])
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        let reserved = std::mem::take(&mut self.reserved);
        let Some(stream) = self.stream_mut(conn) else { return };
        assert!(n <= reserved, "{n} bytes committed of {reserved} reserved");
        if let Some((_, written)) = &mut stream.buffer {
            *written += n;
            stream.credit -= n;
        }
    }

    fn close(&mut self, conn: ConnId) {
        let Some(stream) = self.stream_mut(conn) else { return };
        if !std::mem::replace(&mut stream.closed, true) {
            self.send_buffer(conn);
            self.command(Command::Close(conn));
        }
    }

    fn lingering_close(&mut self, conn: ConnId) {
        if self.stream_mut(conn).is_some() {
            self.send_buffer(conn);
            self.silence(conn);
            self.command(Command::LingeringClose(conn));
        }
    }

    fn abort(&mut self, conn: ConnId) {
        if self.stream_mut(conn).is_some() {
            self.silence(conn);
            self.command(Command::Abort(conn));
        }
    }

    fn set_timer(&mut self, conn: ConnId, delay: Option<Duration>) {
        let wanted = delay.map(|delay| self.now + delay);
        if let Some(stream) = self.streams.get_mut(conn).filter(|stream| !stream.aborted) {
            stream.timer_due = false;
            self.timers.set(conn, &mut stream.timer, wanted);
        }
    }

    fn connect(&mut self, remote: SocketAddr, token: u64) {
        self.command(Command::Connect(remote, token));
    }

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        if self.commands.datagrams.len() >= DATAGRAMS {
            self.flush_commands();
            if self.commands.datagrams.len() >= DATAGRAMS {
                return Err(datagram);
            }
        }
        self.commands.datagrams.push(datagram);
        Ok(())
    }

    fn write_datagram(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(mut buffer) = self.config.arena.alloc(len) else { return false };
        write(&mut buffer);
        self.send_datagram(Datagram { local, remote, payload: buffer.freeze() }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::BATCHES;
    use linerate_bypass::arena::{Arena, ArenaConfig};
    use linerate_service::mailbox::mailbox;
    use linerate_service::{AppMsg, AppSender};

    const CONN: fn() -> ConnId = || ConnId::new(0, 0, 0);

    fn net() -> (Net, Arc<SharedQueues>) {
        let arena = Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap();
        let config = Config { window: 1 << 16, arena, co_scheduled: false, sleeps: false };
        let (back, empty) = mailbox(BATCHES);
        for _ in 1..BATCHES {
            back.send(Commands::default()).ok().unwrap();
        }
        let shared = Arc::new(SharedQueues::default());
        let mut net = Net::new(0, config, shared.clone(), empty);
        let address = "127.0.0.1:7".parse().unwrap();
        net.streams.insert(CONN(), Stream::new([address, address], 1 << 16));
        (net, shared)
    }

    #[test]
    fn unread_data_in_many_slices_are_copied_together() {
        let (mut net, shared) = net();
        for n in 0..1000_u32 {
            net.receive(CONN(), Bytes::from(vec![n as u8]));
        }
        let stream = net.streams.get(CONN()).unwrap();
        assert!(stream.received.len() == 1000 && stream.received.slices() < 100);
        assert!(shared.copied.load(Ordering::Relaxed) > 0);
        let mut read = Vec::new();
        while let Some(bytes) = net.take(CONN(), usize::MAX) {
            read.extend_from_slice(&bytes);
        }
        assert!(read.iter().copied().eq((0..1000_u32).map(|n| n as u8)));
        // Every received slice is reported as consumed, now or later.
        assert_eq!(net.slices_done, 1000);
    }

    #[test]
    fn full_mailbox_loses_no_command_and_no_batch() {
        let (mut net, shared) = net();
        let (sender, mut worker) = mailbox(1);
        shared.worker_sender.set(AppSender::new(vec![sender])).ok().unwrap();
        net.connect("127.0.0.1:1".parse().unwrap(), 0);
        net.flush();
        for token in 1..1000 {
            net.connect("127.0.0.1:1".parse().unwrap(), token);
            net.flush();
        }
        let mut tokens = Vec::new();
        while let Some(message) = worker.receive() {
            let AppMsg::Message { message, .. } = message else { panic!("no query was sent") };
            let requested = message.items.into_iter().map(|command| match command {
                Command::Connect(_, token) => token,
                _ => panic!("unexpected command"),
            });
            tokens.extend(requested);
            net.flush();
        }
        assert_eq!(tokens, (0..1000).collect::<Vec<u64>>());
    }
}
