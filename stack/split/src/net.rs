//! What a service on a thread of its own acts on.

use crate::Config;
use crate::crossing::{BATCH, Command, Commands, DATAGRAMS, Shared};
use crate::stream::Stream;
use crate::table::Table;
use linerate_bypass::mailbox::Receiver;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Bytes, ConnId, Datagram, Timers, Transport};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Places that services write in are of the first size at least, and of the second at most.
const PLACE: std::ops::RangeInclusive<usize> = 496..=16 << 10;

/// The connections of one service, and what it asks its worker for.
pub(crate) struct Net {
    pub worker: usize,
    pub now: Instant,
    pub config: Config,
    shared: Arc<Shared>,
    pub streams: Table<Stream>,
    pub timers: Timers,
    /// The batch that is being filled, and those that are empty.
    commands: Commands,
    empty: Receiver<Commands>,
    /// One that is empty and was not needed in the end.
    spare: Option<Commands>,
    /// Connections whose peer has finished and whose last bytes have just been consumed.
    pub ended: Vec<ConnId>,
    /// Those with a place that is being written.
    placed: Vec<ConnId>,
    /// Those that found no memory to write in.
    pub out_of_memory: Vec<ConnId>,
    /// The service has aborted or closed a connection with a lingering close since it was last told of a burst.
    pub has_silenced: bool,
    /// How long the place is that was given last.
    reserved: usize,
    /// Slices consumed, of all connections.
    slices_done: u64,
}

impl Net {
    pub fn new(worker: usize, config: Config, shared: Arc<Shared>, empty: Receiver<Commands>) -> Self {
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
            placed: Vec::new(),
            out_of_memory: Vec::new(),
            has_silenced: false,
            reserved: 0,
            slices_done: 0,
        }
    }

    /// The connection, if it is there and was not reset.
    fn stream(&self, conn: ConnId) -> Option<&Stream> {
        self.streams.get(conn).filter(|stream| !stream.aborted)
    }

    pub fn stream_mut(&mut self, conn: ConnId) -> Option<&mut Stream> {
        self.streams.get_mut(conn).filter(|stream| !stream.aborted)
    }

    /// Takes a connection out, with everything that it has.
    pub fn remove(&mut self, conn: ConnId) {
        if let Some(mut stream) = self.streams.remove(conn) {
            self.slices_done += stream.received.slices() as u64;
            self.timers.cancel(conn, &mut stream.timer);
        }
    }

    /// Takes in what was received on `conn`. Returns whether that is to be told, and was not going to be.
    pub fn receive(&mut self, conn: ConnId, bytes: Bytes) -> bool {
        let Some(stream) = self.streams.get_mut(conn).filter(|stream| !stream.aborted) else {
            self.slices_done += 1;
            return false;
        };
        stream.received.push(bytes);
        let news = !std::mem::replace(&mut stream.listed, true);
        if stream.received.is_scattered() {
            // What the service leaves lying is worth a copy: its slices may keep packets of the port.
            let before = (stream.received.len(), stream.received.slices());
            self.shared.copied.fetch_add(stream.received.gather() as u64, Ordering::Relaxed);
            self.has_consumed(conn, before);
        }
        news
    }

    /// Sends what has been written and asked for.
    pub fn flush(&mut self) {
        while let Some(conn) = self.placed.pop() {
            self.send_place(conn);
        }
        self.shared.slices_done.store(self.slices_done, Ordering::Relaxed);
        self.flush_commands();
    }

    fn flush_commands(&mut self) {
        if self.commands.items.is_empty() && self.commands.datagrams.is_empty() {
            return;
        }
        let Some(way) = self.shared.way.get() else { return };
        if let Some(empty) = self.spare.take().or_else(|| self.empty.receive()) {
            let commands = std::mem::replace(&mut self.commands, empty);
            if let Err(commands) = way.send_to_worker(self.worker, commands) {
                // The mailbox is full: another time.
                self.spare = Some(std::mem::replace(&mut self.commands, commands));
            }
        }
    }

    /// Whether there is something that has not been asked for yet, for want of room.
    pub fn is_backed_up(&self) -> bool {
        !self.commands.items.is_empty() || !self.commands.datagrams.is_empty()
    }

    fn command(&mut self, command: Command) {
        self.commands.items.push(command);
        if self.commands.items.len() >= BATCH {
            self.flush_commands();
        }
    }

    /// Something has been consumed of what was received on `conn`, of which there were `before` bytes in so many slices.
    fn has_consumed(&mut self, conn: ConnId, before: (usize, usize)) {
        let window = self.config.window;
        let Some(stream) = self.streams.get_mut(conn) else { return };
        let slices = before.1 - stream.received.slices();
        let told = stream.consumed(conn, before.0 - stream.received.len(), slices, window);
        if stream.end_is_due() {
            self.ended.push(conn);
        }
        self.slices_done += slices as u64;
        if let Some(told) = told {
            self.command(told);
        }
    }

    /// Sends what has been written into the place of `conn`, if there is one.
    fn send_place(&mut self, conn: ConnId) {
        if let Some((mut place, written)) = self.streams.get_mut(conn).and_then(|stream| stream.place.take())
            && written > 0
        {
            place.truncate(written);
            self.command(Command::Send(conn, place.freeze()));
        }
    }

    /// Leaves nothing to happen on `conn` but its end.
    fn silence(&mut self, conn: ConnId) {
        let Some(stream) = self.stream_mut(conn) else { return };
        stream.aborted = true;
        stream.place = None;
        let slices = stream.received.slices() as u64;
        stream.received.clear();
        if stream.finished {
            // The worker does not know it any more.
            self.ended.push(conn);
        }
        self.slices_done += slices;
        self.has_silenced = true;
    }

    /// The service has found too little room on `conn`.
    fn starve(&mut self, conn: ConnId) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        stream.wants_room = true;
        if !std::mem::replace(&mut stream.starved, true) {
            self.send_place(conn);
            self.command(Command::Starved(conn));
        }
    }

    /// A place to write up to `max` bytes in, behind what has been written before.
    fn place(&mut self, conn: ConnId, max: usize) -> Option<()> {
        let stream = self.streams.get_mut(conn)?;
        if let Some((place, written)) = &stream.place {
            // What is left is worth it, or is enough.
            if place.len() - written >= max.min(*PLACE.start() / 4) {
                return Some(());
            }
            self.send_place(conn);
        }
        let len = max.clamp(*PLACE.start(), *PLACE.end());
        let Some(place) = self.config.arena.alloc(len) else {
            if let Some(stream) = self.streams.get_mut(conn) {
                stream.wants_room = true;
            }
            self.out_of_memory.push(conn);
            return None;
        };
        self.streams.get_mut(conn)?.place = Some((place, 0));
        self.placed.push(conn);
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
                self.starve(conn);
                0
            }
            None => 0,
        }
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Bytes> {
        let Some(stream) = self.stream_mut(conn).filter(|stream| !stream.closed) else { return Err(bytes) };
        if bytes.len() > stream.credit {
            self.starve(conn);
            return Err(bytes);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        stream.credit -= bytes.len();
        self.send_place(conn);
        self.command(Command::Send(conn, bytes));
        Ok(())
    }

    fn reserve(&mut self, conn: ConnId, max: usize) -> Option<&mut [u8]> {
        self.reserved = 0;
        if self.send_space(conn) == 0 || max == 0 {
            return None;
        }
        self.place(conn, max)?;
        let stream = self.streams.get_mut(conn)?;
        let credit = stream.credit;
        let (place, written) = stream.place.as_mut()?;
        let free = &mut place[*written..];
        let len = free.len().min(max).min(credit);
        self.reserved = len;
        Some(&mut free[..len])
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        let reserved = std::mem::take(&mut self.reserved);
        let Some(stream) = self.stream_mut(conn) else { return };
        assert!(n <= reserved, "{n} bytes of {reserved} that were reserved");
        if let Some((_, written)) = &mut stream.place {
            *written += n;
            stream.credit -= n;
        }
    }

    fn close(&mut self, conn: ConnId) {
        let Some(stream) = self.stream_mut(conn) else { return };
        if !std::mem::replace(&mut stream.closed, true) {
            self.send_place(conn);
            self.command(Command::Close(conn));
        }
    }

    fn lingering_close(&mut self, conn: ConnId) {
        if self.stream_mut(conn).is_some() {
            self.send_place(conn);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crossing::BATCHES;
    use linerate_bypass::arena::{Arena, ArenaConfig};
    use linerate_bypass::mailbox::mailbox;
    use linerate_bypass::{AppMsg, AppSender};

    const CONN: fn() -> ConnId = || ConnId::new(0, 0, 0);

    fn net() -> (Net, Arc<Shared>) {
        let arena = Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap();
        let config = Config { window: 1 << 16, arena, co_scheduled: false, sleeps: false };
        let (back, empty) = mailbox(BATCHES);
        for _ in 1..BATCHES {
            back.send(Commands::default()).ok().unwrap();
        }
        let shared = Arc::new(Shared::default());
        let mut net = Net::new(0, config, shared.clone(), empty);
        let address = "127.0.0.1:7".parse().unwrap();
        net.streams.insert(CONN(), Stream::new([address, address], 1 << 16));
        (net, shared)
    }

    #[test]
    fn what_is_left_lying_in_many_slices_is_gathered_and_counted() {
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
        // Each slice that came has been told, or is to be, as consumed.
        assert_eq!(net.slices_done, 1000);
    }

    #[test]
    fn a_mailbox_that_is_full_loses_nothing_and_no_batch() {
        let (mut net, shared) = net();
        let (way, mut worker) = mailbox(1);
        shared.way.set(AppSender::new(vec![way])).ok().unwrap();
        net.connect("127.0.0.1:1".parse().unwrap(), 0);
        net.flush();
        for token in 1..1000 {
            net.connect("127.0.0.1:1".parse().unwrap(), token);
            net.flush();
        }
        let mut tokens = Vec::new();
        while let Some(letter) = worker.receive() {
            let AppMsg::Message { message, .. } = letter else { panic!("nobody looked") };
            let asked = message.items.into_iter().map(|command| match command {
                Command::Connect(_, token) => token,
                _ => panic!("nothing else was asked for"),
            });
            tokens.extend(asked);
            net.flush();
        }
        assert_eq!(tokens, (0..1000).collect::<Vec<u64>>());
    }
}
