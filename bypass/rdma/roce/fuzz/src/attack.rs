//! Device with queue pairs and a listener, and packets of a hostile peer.

use super::packets::*;
use crate::{Config, Device, Driver, Engine, Path, Port};
use linerate_rdma_provider::*;
use linerate_service::time::{Duration, Instant};
use std::net::{IpAddr, SocketAddr};

const SIZE: usize = 8192;
/// Region for the peer, and one that only local requests may name. The rest of the memory is in no region.
const OPEN: std::ops::Range<usize> = 1024..3072;
const LOCAL: std::ops::Range<usize> = 4096..5120;
const CANARY: u8 = 0xa5;
const KEY: u32 = 0x1234;
/// Service ID of the listener.
const SERVICE: [u8; 8] = [0, 0, 0, 0, 1, 6, 0x1d, 0x2f];
const LISTENING: u16 = 0x1d2f;

/// Engine whose packets are counted and dropped.
struct Node {
    engine: Engine,
    now: Instant,
    sink: Sink,
}

impl Driver for Node {
    fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn turn(&mut self) {}
}

#[derive(Default)]
struct Sink {
    sent: usize,
    /// Communication ID of the last message of the connection manager.
    comm: [u8; 4],
}

impl Port for Sink {
    fn has_room(&mut self) -> bool {
        true
    }

    fn send(&mut self, _path: &Path, len: usize, write: impl FnOnce(&mut [u8])) {
        let mut packet = vec![0; len];
        write(&mut packet);
        self.sent += 1;
        if packet[4..8] == [0, 0, 0, 1] {
            self.comm = *packet[12 + 8 + 24..].first_chunk().unwrap();
        }
    }
}

/// Input. After its end, all bytes are zero.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (byte, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *byte
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }
}

/// Device under attack.
pub struct Victim {
    device: Device<Node>,
    memory: *mut [u8; SIZE],
    keys: [Keys; 2],
    /// Handle and number of two connected queue pairs, of which the second one takes shared buffers, and one for
    /// datagrams.
    qps: [(Handle, u32); 3],
    cq: Handle,
    srq: Handle,
    channel: Handle,
    /// Next sequence number to each queue pair.
    psns: [u32; 3],
}

macro_rules! call {
    ($call:expr) => {{
        // SAFETY: handles are those of the device, and the memory outlives it and is accessed by raw pointers only.
        unsafe { $call }
    }};
}

impl Victim {
    pub fn new() -> Self {
        let addresses = vec![(IpAddr::from([10, 0, 0, 1]), 24)];
        let mut engine = Engine::new(&Config { seed: 1, mtu: 1500, addresses }).unwrap();
        engine.enable_ecn();
        let device = Device::new("victim", Node { engine, now: Instant::from_nanos(1), sink: Sink::default() });
        let memory = Box::into_raw(Box::new([CANARY; SIZE]));
        let pd = device.alloc_pd().unwrap();
        let all = Access { remote_read: true, remote_write: true, remote_atomic: true, ..LOCAL_WRITE };
        let keys = [(OPEN, all), (LOCAL, LOCAL_WRITE)].map(|(part, access)| {
            let start = memory.cast::<u8>().wrapping_add(part.start);
            call!(device.reg_mr(pd, start, part.len(), access)).unwrap().1
        });
        let cq = call!(device.create_cq(4096, None, 0)).unwrap();
        let srq = call!(device.create_srq(pd, &SrqInitAttr { buffers: 8, sges: 1 })).unwrap();
        let cap = QpCap { sends: 8, receives: 8, send_sges: 1, recv_sges: 1, inline: 0 };
        let attr = QpInitAttr { send_cq: cq, recv_cq: cq, srq: None, cap };
        let shared = QpInitAttr { srq: Some(srq), ..attr };
        let qps = [
            call!(device.create_qp(pd, &attr)).unwrap(),
            call!(device.create_qp(pd, &shared)).unwrap(),
            call!(device.create_ud_qp(pd, &attr)).unwrap(),
        ]
        .map(|(handle, number, _)| (handle, number));
        let channel = device.cm_create_event_channel().unwrap().0;
        let listener = call!(device.cm_create_id(channel)).unwrap();
        call!(device.cm_listen(listener, SocketAddr::from(([0, 0, 0, 0], LISTENING)), 4)).unwrap();
        let mut victim = Victim { device, memory, keys, qps, cq, srq, channel, psns: [0; 3] };
        (0..3).for_each(|qp| victim.restart(qp));
        victim
    }

    /// Moves a queue pair to RTS again, with requests and buffers.
    fn restart(&mut self, index: usize) {
        let (qp, _) = self.qps[index];
        let modify = |transition: Transition| call!(self.device.modify_qp(qp, &transition)).unwrap();
        let first = [200, 0xff_fffe, 0][index];
        self.psns[index] = first;
        modify(Transition::Reset);
        if index == 2 {
            modify(Transition::InitUd { port: 1, partition: 0, key: KEY });
            modify(Transition::RtrUd);
            modify(Transition::RtsUd { psn: 0 });
        } else {
            let gid = self.device.gids(1).unwrap()[0];
            let path = AhAttr::to([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2], 0, &gid);
            let access = Access { remote_read: true, remote_write: true, remote_atomic: true, ..LOCAL_WRITE };
            modify(Transition::Init { port: 1, partition: 0, access });
            let (mtu, responder_resources, min_rnr_timer) = (Mtu::Mtu256, 2, 1);
            modify(Transition::Rtr { mtu, qp: 7, psn: first, responder_resources, min_rnr_timer, path });
            modify(Transition::Rts { psn: 100, timeout: 8, retries: 7, rnr_retries: 7, initiator_depth: 2 });
            let (address, rkey) = (0x10_0000, 9);
            let operations = [
                (Operation::Send, 600),
                (Operation::Read { address, rkey }, 600),
                (Operation::FetchAdd { address, rkey, add: 1 }, 8),
                (Operation::Write { address, rkey }, 300),
            ];
            for (id, (operation, len)) in (0..).zip(operations) {
                let sges = [self.sge(OPEN.start, len)];
                let request = SendWr { id, sges: &sges, operation, flags: SendFlags::SIGNALLED };
                call!(self.device.post_send(qp, &[request])).unwrap();
            }
        }
        self.post(index);
    }

    fn sge(&self, at: usize, len: u32) -> Sge {
        Sge { address: self.memory as u64 + at as u64, len, lkey: self.keys[0].local }
    }

    /// Posts a buffer, if there is room.
    fn post(&self, index: usize) {
        let sges = [self.sge(OPEN.start + 1024, 700)];
        let buffer = [RecvWr { id: 9, sges: &sges }];
        _ = match index {
            1 => call!(self.device.post_srq_recv(self.srq, &buffer)),
            _ => call!(self.device.post_recv(self.qps[index].0, &buffer)),
        };
    }

    /// Plays an input: packets of any content, or valid ones with changes, among calls of a program.
    pub fn attack(&mut self, data: &[u8]) {
        let mut input = Input(data);
        while !input.0.is_empty() {
            match input.byte() % 16 {
                0 => {
                    let len = input.byte().into();
                    let packet = input.take(len);
                    self.receive(&packet);
                }
                1 => self.restart(usize::from(input.byte()) % 3),
                2 => self.post(usize::from(input.byte()) % 3),
                3 => self.driver(|node| node.now += Duration::from_nanos(1 << (input.byte() % 40))),
                4 => self.answer(input.byte()),
                code => self.send(code, &mut input),
            }
            self.turn();
        }
    }

    fn driver<T>(&self, call: impl FnOnce(&mut Node) -> T) -> T {
        call(&mut self.device.driver())
    }

    fn receive(&self, packet: &[u8]) {
        self.driver(|node| node.engine.receive(packet, node.now));
    }

    /// Sends packets and polls completions.
    fn turn(&self) {
        let sent = self.driver(|Node { engine, now, sink }| {
            let before = sink.sent;
            (0..8).for_each(|_| engine.transmit(*now, sink));
            sink.sent - before
        });
        assert!(sent < 100, "one packet causes {sent} packets");
        let mut completions = Vec::with_capacity(64);
        call!(self.device.poll_cq(self.cq, &mut completions)).unwrap();
        while self.device.async_event().unwrap().is_some() {}
    }

    /// Handles an event of the connection manager.
    fn answer(&self, how: u8) {
        let Some(event) = call!(self.device.cm_get_event(self.channel)).unwrap() else { return };
        let parameters = CmConnParam {
            qp: self.qps[0].1,
            responder_resources: 1,
            initiator_depth: 1,
            retries: 7,
            rnr_retries: 7,
            is_shared: false,
            private_data: PrivateData::new(b"x"),
        };
        if let CmEventKind::Request { .. } = event.kind
            && how & 3 != 0
        {
            _ = call!(self.device.cm_accept(event.id, &parameters));
        } else {
            _ = call!(self.device.cm_disconnect(event.id));
            if how & 3 != 3 {
                _ = call!(self.device.cm_destroy_id(event.id));
            }
        }
    }

    /// Sends a packet that is valid but for changes of the input.
    fn send(&mut self, code: u8, input: &mut Input<'_>) {
        let index = usize::from(input.byte()) % 3;
        let (opcode, delta, len) = (input.byte(), input.byte(), input.byte());
        let [open, local] = self.keys.map(|keys| keys.remote);
        let (address, rkey) = match delta >> 5 {
            0 => (self.memory as u64 + LOCAL.start as u64, local),
            1 => (self.memory as u64 + OPEN.start as u64 - 1, open),
            3 => (self.memory as u64 + OPEN.end as u64 - 8, open),
            at => (self.memory as u64 + OPEN.start as u64 + 8 * u64::from(at), open),
        };
        let payload = vec![len; usize::from(len) * 2];
        // Full packets, and a READ response or acknowledgement, are likely.
        let (mut qp, mut opcode, rest) = match code {
            5 => (self.qps[index].1, opcode, payload),
            6 => (self.qps[index].1, [0, 1, 2, 4][usize::from(opcode) % 4], vec![1; 256]),
            7 => (self.qps[index].1, 6 + opcode % 6, [reth(address, rkey, payload.len() as u32), payload].concat()),
            8 => (self.qps[index].1, 12, reth(address, rkey, u32::from(len) * 8)),
            9 => (self.qps[index].1, 19 + opcode % 2, atomic_eth(address, rkey, 1, 2)),
            10 => (self.qps[index].1, 17, aeth(len, 0)),
            11 => (self.qps[index].1, 13 + opcode % 6, [aeth(31, 0), vec![3; 256]].concat()),
            12 => (self.qps[2].1, 0x64, [deth(KEY, 5), payload].concat()),
            _ => (1, 0x64, [deth(0x8001_0000, 1), self.mad(opcode, len)].concat()),
        };
        let is_response = (13..19).contains(&opcode);
        let psn = if is_response { 100 + u32::from(delta % 16) } else { self.psns[index] + u32::from(delta & 16) / 16 };
        self.psns[index] += u32::from(!is_response && delta & 16 == 0);
        let [to, from] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        if code == 15 {
            (qp, opcode) = (self.qps[2].1 ^ u32::from(len), opcode | 0x60);
        }
        let ack = delta & 8 == 0;
        let packet = Packet { from, to, opcode, solicited: false, qp, ack, psn: psn & 0xff_ffff, rest };
        let mut bytes = packet.bytes();
        bytes.truncate(bytes.len() - 4);
        for _ in 0..input.byte().saturating_sub(192) % 8 {
            let at = usize::from(u16::from_be_bytes([input.byte(), input.byte()])) % bytes.len();
            bytes[at] ^= input.byte();
        }
        self.receive(&sealed(bytes));
    }

    /// Returns a message of the connection manager about one of a few connections.
    fn mad(&self, attribute: u8, number: u8) -> Vec<u8> {
        let mut mad = vec![0; 256];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = 0x10 + attribute % 7;
        mad[27] = number;
        mad[28..32].copy_from_slice(&self.driver(|node| node.sink.comm));
        mad[32..40].copy_from_slice(&SERVICE);
        mad[58] = number | 1;
        mad[24 + 50] = 3 << 4;
        mad[24 + 141] = 4 << 4;
        mad
    }

    /// Asserts that memory outside of the region for the peer is unchanged.
    pub fn assert_intact(&self) {
        // SAFETY: the device writes only during its calls.
        let memory = unsafe { &*self.memory };
        let outside = memory[..OPEN.start].iter().chain(&memory[OPEN.end..]);
        assert!(outside.copied().all(|byte| byte == CANARY), "memory outside of the region was written");
    }
}

const LOCAL_WRITE: Access = Access {
    local_write: true,
    remote_read: false,
    remote_write: false,
    remote_atomic: false,
    bind: false,
    relaxed: false,
};

impl Drop for Victim {
    fn drop(&mut self) {
        // SAFETY: created from a box, and the device performs no more calls.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}
