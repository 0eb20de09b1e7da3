use super::*;
use crate::provider::{AhAttr, GidKind, WcOpcode, WorkCompletion};
use crate::verbs::{Cq, Pd};
use linerate_bypass::Arena;
use linerate_bypass::arena::ArenaConfig;
use linerate_roce::testing::{Call, DeviceConfig, Fabric, FabricConfig, Faults, Live, SimDevice};
use std::sync::Arc;

const CONFIG: QpConfig = QpConfig { sends: 8, receives: 8, inline: 16, signal_every: 4, list: 4 };

/// Results of completed requests or buffers.
type Ends<T> = Vec<Result<T, WcStatus>>;

struct End {
    datagrams: UdQp<SimDevice>,
    cq: Cq<SimDevice>,
    mr: Mr<SimDevice>,
    arena: Arena,
    sim: Arc<SimDevice>,
}

impl End {
    fn new(fabric: &Fabric, last: u8, key: Option<u32>) -> Self {
        let sim = fabric.device("model", DeviceConfig::roce([10, 0, 0, last].into()));
        let arena = Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap();
        let mr = Mr::new(&Pd::new(&sim).unwrap(), std::slice::from_ref(&arena), None).unwrap();
        let cq = Cq::new(&sim, 64, None).unwrap();
        let datagrams = UdQp::new(&mr, cq.handle(), &CONFIG, 1, key).unwrap();
        End { datagrams, cq, mr, arena, sim }
    }

    fn post(&mut self, count: usize) {
        let len = self.datagrams.buffer_len();
        self.datagrams.post((0..count).map(|_| self.arena.alloc(len).unwrap())).unwrap();
    }

    fn ah(&self, to: &End) -> Ah<SimDevice> {
        let gid = |end: &End| *end.sim.gids(1).unwrap().iter().rfind(|gid| gid.kind == GidKind::RoceV2).unwrap();
        Ah::new(self.mr.pd(), &AhAttr::to(gid(to).raw, 0, &gid(self))).unwrap()
    }

    fn bytes(&self, text: &[u8]) -> Bytes {
        let mut block = self.arena.alloc(text.len()).unwrap();
        block.copy_from_slice(text);
        block.freeze()
    }

    fn message(&self, text: &[u8]) -> Message {
        let mut message = Message::new();
        message.push(self.bytes(text)).unwrap();
        message
    }

    /// Queues a message for `to`.
    fn send(&mut self, to: &End, text: &[u8], signalled: bool) {
        let (ah, mut message) = (self.ah(to), self.message(text));
        let (qp, key) = (to.datagrams.number(), to.datagrams.key());
        self.datagrams.send(&ah, qp, key, &mut message, signalled).unwrap();
        assert!(message.is_empty());
    }

    /// Returns received datagrams and send results.
    fn poll(&mut self) -> (Ends<UdMessage>, Ends<()>) {
        let (mut received, mut sent) = (Vec::new(), Vec::new());
        for completion in self.cq.poll(64).unwrap() {
            if !self.datagrams.owns(&completion) {
                continue;
            }
            match completion.is_buffer() {
                true => received.push(self.datagrams.received(completion)),
                false => sent.push(self.datagrams.sent(completion)),
            }
        }
        (received, sent)
    }

    fn texts(&mut self) -> Vec<Vec<u8>> {
        self.poll().0.into_iter().map(|datagram| datagram.unwrap().payload.to_vec()).collect()
    }
}

fn ends() -> (Fabric, End, End) {
    let fabric = Fabric::new(FabricConfig::default());
    let (one, other) = (End::new(&fabric, 1, None), End::new(&fabric, 2, Some(0x1234)));
    (fabric, one, other)
}

#[test]
fn qp_sends_to_several_peers_and_reports_senders() {
    let (fabric, mut one, mut other) = ends();
    let mut third = End::new(&fabric, 3, None);
    assert_eq!(other.datagrams.key(), 0x1234);
    assert!(one.datagrams.key() < PRIVILEGED && one.datagrams.key() != third.datagrams.key());
    [&mut other, &mut third].into_iter().for_each(|end| end.post(2));
    one.send(&other, b"short", false);
    one.send(&third, &[7; 1000], true);
    assert_eq!(one.datagrams.flush().unwrap(), (2, 1));
    fabric.run();
    let (_, sent) = one.poll();
    assert_eq!((sent, one.datagrams.outstanding()), (vec![Ok(())], 0));
    let (mut received, _) = other.poll();
    let datagram = received.pop().unwrap().unwrap();
    assert_eq!((&datagram.payload[..], datagram.qp), (&b"short"[..], one.datagrams.number()));
    let ah = other.ah(&one);
    one.post(1);
    let mut answer = other.message(b"answer");
    other.datagrams.send(&ah, datagram.qp, one.datagrams.key(), &mut answer, false).unwrap();
    other.datagrams.flush().unwrap();
    fabric.run();
    assert_eq!((one.texts(), third.texts()), (vec![b"answer".to_vec()], vec![vec![7; 1000]]));
}

#[test]
fn chunks_are_sent_in_place() {
    let (fabric, mut one, mut other) = ends();
    other.post(1);
    let ah = one.ah(&other);
    let mut message = one.message(&[1; 300]);
    message.push(one.bytes(&[2; 300])).unwrap();
    let address = message.chunks().next().unwrap().as_ptr();
    let (qp, key) = (other.datagrams.number(), other.datagrams.key());
    one.datagrams.send(&ah, qp, key, &mut message, true).unwrap();
    one.datagrams.flush().unwrap();
    assert_ne!(one.bytes(&[3; 300]).as_ptr(), address, "kept until it is sent");
    fabric.run();
    one.poll();
    assert_eq!(other.texts(), [[[1; 300], [2; 300]].concat()]);
}

#[test]
fn invalid_messages_are_returned() {
    let (fabric, mut one, other) = ends();
    let (ah, foreign) = (one.ah(&other), other.ah(&one));
    let (qp, key) = (other.datagrams.number(), other.datagrams.key());
    assert_eq!(one.datagrams.max_message(), 1024);
    let mut message = one.message(&[1; 1025]);
    assert_eq!(one.datagrams.send(&ah, qp, key, &mut message, true), Err(PostRefused::ExceedsMtu));
    assert_eq!(message.len(), 1025);
    let mut message = one.message(&[1; 1024]);
    assert_eq!(one.datagrams.send(&foreign, qp, key, &mut message, true), Err(PostRefused::OtherPd));
    assert_eq!(one.datagrams.send(&ah, 1 << 24, key, &mut message, true), Err(PostRefused::InvalidQpNum));
    let mut elsewhere = other.message(&[1; 100]);
    assert_eq!(one.datagrams.send(&ah, qp, key, &mut elsewhere, true), Err(PostRefused::NotRegistered));
    assert_eq!(one.datagrams.flush().unwrap(), (0, 0));
    for _ in 0..8 {
        one.datagrams.send(&ah, qp, key, &mut one.message(b"x"), false).unwrap();
    }
    assert_eq!(one.datagrams.send(&ah, qp, key, &mut message, true), Err(PostRefused::QueueFull));
    assert_eq!(message.len(), 1024);
    one.datagrams.flush().unwrap();
    fabric.run();
    assert_eq!(one.poll().1.len(), 2, "every fourth is signalled");
    assert_eq!(one.datagrams.room(), 8);
}

#[test]
fn ah_is_kept_until_request_completes() {
    let (fabric, mut one, mut other) = ends();
    other.post(4);
    for text in [&b"inline"[..], &[1; 100]] {
        one.send(&other, text, false);
    }
    one.datagrams.flush().unwrap();
    assert_eq!(fabric.live().addresses, 2);
    fabric.run();
    assert_eq!(other.texts().len(), 2);
    assert_eq!(fabric.live().addresses, 2, "completion not yet polled");
    one.send(&other, b"the last", true);
    one.datagrams.flush().unwrap();
    fabric.run();
    one.poll();
    assert_eq!(fabric.live().addresses, 0);
}

#[test]
fn failed_post_drops_message_and_ah() {
    let (fabric, mut one, mut other) = ends();
    other.post(8);
    // Requests are posted four at a time.
    fabric.fail_call(&one.sim, Call::PostSend, 1, libc::EIO);
    (0..6).for_each(|_| one.send(&other, b"x", false));
    assert_eq!(one.datagrams.flush().unwrap_err().error.raw_os_error(), Some(libc::EIO));
    assert_eq!((one.datagrams.outstanding(), fabric.live().addresses), (4, 4));
    fabric.run();
    assert_eq!((one.poll().1.len(), other.texts().len(), fabric.live().addresses), (1, 4, 0));
}

#[test]
fn short_or_excess_buffers_are_not_posted() {
    let (fabric, mut one, mut other) = ends();
    let len = other.datagrams.buffer_len();
    assert_eq!(len, 1064);
    let lengths = [len, len - 1, len];
    let error = other.datagrams.post(lengths.map(|len| other.arena.alloc(len).unwrap())).unwrap_err();
    assert_eq!(error.error.raw_os_error(), Some(libc::EINVAL));
    assert_eq!((other.datagrams.posted_buffers(), other.datagrams.recv_room()), (1, 7));
    other.post(20);
    assert_eq!((other.datagrams.posted_buffers(), other.datagrams.recv_room()), (8, 0));
    for round in 0..10 {
        (0..8).for_each(|_| one.send(&other, &[round; 1024], false));
        one.datagrams.flush().unwrap();
        fabric.run();
        one.poll();
        assert_eq!(other.texts(), vec![vec![round; 1024]; 8]);
        other.post(8);
    }
    assert_eq!(other.sim.counters().datagrams_lost, 0);
    fabric.fail_call(&other.sim, Call::PostReceive, 0, libc::EIO);
    (0..8).for_each(|_| one.send(&other, b"x", false));
    one.datagrams.flush().unwrap();
    fabric.run();
    assert_eq!(other.texts().len(), 8);
    assert!(other.datagrams.post([other.arena.alloc(len).unwrap()]).is_err());
    assert_eq!(other.datagrams.posted_buffers(), 0);
}

#[test]
fn lost_and_delayed_datagrams_are_tolerated() {
    let (fabric, mut one, mut other) = ends();
    fabric.set_faults(Faults { lost: 50, late: 50, twice: 0 });
    let mut came = Vec::new();
    for number in 0..40 {
        other.post(other.datagrams.recv_room());
        one.send(&other, &[number], true);
        one.datagrams.flush().unwrap();
        if number % 8 == 7 {
            fabric.run();
        }
        assert!(one.poll().1.iter().all(|end| *end == Ok(())));
        came.extend(other.texts().concat());
    }
    assert_eq!(came.len() as u64, 40 - fabric.lost());
    assert!((10..30).contains(&came.len()) && !came.is_sorted(), "{came:?}");
}

#[test]
fn errored_qp_is_rebuilt_with_same_number_and_key() {
    let (fabric, mut one, mut other) = ends();
    let (number, key) = (one.datagrams.number(), one.datagrams.key());
    one.post(8);
    fabric.fail_request(number, 0, WcStatus::LocalQp);
    (0..3).for_each(|_| one.send(&other, b"x", true));
    one.datagrams.flush().unwrap();
    assert!(!one.datagrams.is_errored());
    fabric.run();
    let (received, sent) = one.poll();
    assert_eq!(sent, [Err(WcStatus::LocalQp), Err(WcStatus::Flushed), Err(WcStatus::Flushed)]);
    assert!(received.len() == 8 && received.iter().all(|end| matches!(end, Err(WcStatus::Flushed))));
    assert!(one.datagrams.is_errored());
    one.datagrams.rebuild().unwrap();
    assert!(!one.datagrams.is_errored());
    assert_eq!((one.datagrams.number(), one.datagrams.key(), one.datagrams.recv_room()), (number, key, 8));
    other.post(1);
    one.post(1);
    one.send(&other, b"ping", true);
    other.send(&one, b"pong", true);
    one.datagrams.flush().unwrap();
    other.datagrams.flush().unwrap();
    fabric.run();
    assert_eq!((one.texts(), other.texts()), (vec![b"pong".to_vec()], vec![b"ping".to_vec()]));
}

#[test]
fn failed_qp_is_rebuilt_once_all_requests_have_completed() {
    let (fabric, mut one, other) = ends();
    // The last requests are unsignalled.
    (0..3).for_each(|_| one.send(&other, b"x", false));
    one.datagrams.flush().unwrap();
    one.send(&other, b"never posted", true);
    one.post(3);
    one.datagrams.fail().unwrap();
    assert!(one.datagrams.is_errored());
    assert_eq!((one.datagrams.room(), one.datagrams.recv_room()), (0, 0));
    assert_eq!(one.datagrams.rebuild().unwrap_err().error.raw_os_error(), Some(libc::EBUSY));
    assert!(!one.datagrams.drain().unwrap());
    fabric.run();
    let (received, sent) = one.poll();
    assert_eq!((received.len(), sent.last()), (3, Some(&Err(WcStatus::Flushed))));
    assert!(one.datagrams.drain().unwrap());
    one.datagrams.rebuild().unwrap();
    assert_eq!((fabric.live().addresses, one.datagrams.outstanding(), one.datagrams.recv_room()), (0, 0, 8));
    fabric.run();
    let (received, sent) = one.poll();
    assert!(received.is_empty() && sent.is_empty());
}

#[test]
fn failed_rebuild_disables_posting_until_retried() {
    let (fabric, mut one, other) = ends();
    for steps in 1..4 {
        fabric.fail_call(&one.sim, Call::Modify, steps, libc::EIO);
        assert!(one.datagrams.rebuild().is_err());
        assert!(one.datagrams.is_errored());
        assert_eq!((one.datagrams.room(), one.datagrams.recv_room()), (0, 0));
        let (ah, mut message) = (one.ah(&other), one.message(b"x"));
        assert_eq!(one.datagrams.send(&ah, 1, 1, &mut message, true), Err(PostRefused::QueueFull));
        one.datagrams.rebuild().unwrap();
        assert_eq!((one.datagrams.room(), one.datagrams.recv_room()), (8, 8));
    }
}

#[test]
fn dropped_or_failed_qp_leaves_no_objects() {
    let (fabric, mut one, other) = ends();
    one.post(4);
    one.send(&other, b"x", false);
    one.datagrams.flush().unwrap();
    assert_eq!(one.cq.handle().qps(), 1);
    fabric.fail_call(&one.sim, Call::Modify, 2, libc::EIO);
    let made = UdQp::new(&one.mr, one.cq.handle(), &CONFIG, 1, None);
    assert_eq!(made.err().unwrap().error.raw_os_error(), Some(libc::EIO));
    assert!(UdQp::new(&one.mr, one.cq.handle(), &CONFIG, 2, None).is_err());
    assert_eq!((one.cq.handle().qps(), fabric.live().qps), (1, 2));
    drop((one, other));
    assert_eq!(fabric.live(), Live::default());
}

#[test]
fn invalid_length_is_harmless() {
    let (_fabric, mut one, _other) = ends();
    for (number, len, payload) in [(0, 45, 5), (1, 39, 0), (2, 0, 0), (3, 9999, 1024)] {
        one.post(1);
        let (id, qp) = (one.datagrams.owner.buffer(number), one.datagrams.number());
        let inner = WorkCompletion::new(id, WcStatus::Success, WcOpcode::Receive, len, qp);
        let inner = WorkCompletion { source: 5, ..inner };
        let datagram = one.datagrams.received(Completion { inner }).unwrap();
        assert_eq!((datagram.payload.len(), datagram.qp), (payload, 5));
    }
}
