//! What a script expects: of the wire, and of the service.

use super::app::AppEvent;
use super::flow::Got;
use super::params::{ms, tolerance};
use super::script::Script;
use super::segment::{Rel, SEG, Seg, Want, data};
use super::trace::{describe, describe_got};
use super::wire::{ACK, FIN, RST, SYN};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, ConnectError};

impl Script {
    /// The worker has sent this, and nothing before it. No time passes.
    #[track_caller]
    pub fn expect(&mut self, want: Seg) -> Got {
        self.settle();
        match self.pending.pop_front() {
            Some(got) => self.compare(&want, got),
            None => self.fail(&format!("expected: {}\nbut the worker sends nothing", describe(&want))),
        }
    }

    /// The worker sends this after `time` has passed, give or take what timers may be off, and nothing before it.
    #[track_caller]
    pub fn expect_after(&mut self, time: Duration, want: Seg) -> Got {
        let slack = tolerance(time);
        self.expect_between(time.saturating_sub(slack), time + slack, want)
    }

    /// The worker sends this before `time` has passed, and nothing before it.
    #[track_caller]
    pub fn expect_within(&mut self, time: Duration, want: Seg) -> Got {
        self.expect_between(Duration::ZERO, time + tolerance(time), want)
    }

    /// The worker sends this when at least `from` and at most `to` has passed, and nothing before it.
    #[track_caller]
    pub fn expect_between(&mut self, from: Duration, to: Duration, want: Seg) -> Got {
        let began = self.now();
        self.run_until(began + to, |script| !script.pending.is_empty());
        let Some(got) = self.pending.pop_front() else {
            self.fail(&format!("expected within {to:?}: {}\nbut the worker sends nothing", describe(&want)));
        };
        let after = got.at.since(began);
        if after < from {
            let (want, got) = (describe(&want), describe_got(&got));
            self.fail(&format!("expected not before {from:?}: {want}\nbut after {after:?} came: {got}"));
        }
        self.compare(&want, got)
    }

    /// The worker has sent nothing. No time passes.
    #[track_caller]
    pub fn expect_nothing(&mut self) {
        self.settle();
        if let Some(got) = self.pending.pop_front() {
            self.fail(&format!("expected nothing, but the worker sends: {}", describe_got(&got)));
        }
    }

    /// The worker sends nothing while `time` passes.
    #[track_caller]
    pub fn expect_nothing_for(&mut self, time: Duration) {
        self.run_until(self.now() + time, |script| !script.pending.is_empty());
        self.expect_nothing();
    }

    /// The worker has sent `count` segments of [`SEG`] bytes from `from` on, in order. No time passes.
    #[track_caller]
    pub fn expect_flight(&mut self, from: Rel, count: Rel) {
        for n in 0..count {
            self.expect(data(from + n * SEG, SEG));
        }
    }

    /// The worker probes whether the peer is there, or what its window is: with the byte before `next`, which it has
    /// sent before, or none (RFC 9293 §3.8.4), or with the one at `next` (§3.8.6.1).
    #[track_caller]
    pub fn expect_probe_between(&mut self, from: Duration, to: Duration, next: Rel) -> Got {
        let began = self.now();
        self.run_until(began + to, |script| !script.pending.is_empty());
        let Some(got) = self.pending.pop_front() else {
            self.fail(&format!("expected a probe within {to:?}, but the worker sends nothing"));
        };
        let shape = (got.seq == next && got.len == 1) || (got.seq == next - 1 && got.len <= 1);
        if !shape || got.flags & (SYN | FIN | RST) != 0 || !got.has(ACK) || got.at.since(began) < from {
            self.fail(&format!(
                "expected a probe of {next} not before {from:?}, but after {:?} came: {}",
                got.at.since(began),
                describe_got(&got)
            ));
        }
        got
    }

    /// As [`expect_probe_between`](Self::expect_probe_between), at a time, give or take what timers may be off.
    #[track_caller]
    pub fn expect_probe_after(&mut self, time: Duration, next: Rel) -> Got {
        let slack = tolerance(time);
        self.expect_probe_between(time.saturating_sub(slack), time + slack, next)
    }

    /// What the worker has sent and nobody has expected.
    pub fn drain(&mut self) -> Vec<Got> {
        self.settle();
        self.pending.drain(..).collect()
    }

    /// Lets `time` pass, and returns what the worker has sent until then.
    #[track_caller]
    pub fn drain_for(&mut self, time: Duration) -> Vec<Got> {
        self.pass(time);
        self.drain()
    }

    /// IP packets other than TCP that the worker has sent, as frames.
    pub fn drain_others(&mut self) -> Vec<Vec<u8>> {
        self.settle();
        std::mem::take(&mut self.others)
    }

    #[track_caller]
    fn compare(&mut self, want: &Seg, got: Got) -> Got {
        let wrong = self.differences(want, &got);
        if !wrong.is_empty() {
            let (want, got) = (describe(want), describe_got(&got));
            self.fail(&format!("expected: {want}\nbut came: {got}\ndifferent: {}", wrong.join(", ")));
        }
        got
    }

    fn differences(&mut self, want: &Seg, got: &Got) -> Vec<String> {
        let port = want.port.unwrap_or(self.port);
        let options = &got.raw.options;
        let mut wrong = Vec::new();
        let mut differs = |name: &str, is: bool| {
            if is {
                wrong.push(name.to_owned());
            }
        };
        differs("port", got.port != port);
        differs("flags", (got.flags ^ want.flags) & !want.ignored_flags != 0);
        let seq = if want.absolute { Rel::from(got.raw.seq) } else { got.seq };
        differs("sequence number", seq != want.seq);
        differs("length", got.len != want.payload.len());
        differs("acknowledgement", want.ack.value().is_some_and(|ack| got.ack != ack));
        differs("window", want.window.is_some_and(|window| got.raw.window != window));
        differs("MSS", !fits(want.mss, options.mss));
        differs("window scale", !fits(want.window_scale, options.window_scale));
        differs("SACK-permitted", !fits(want.sack_permitted, options.sack_permitted.then_some(())));
        differs("timestamps", !fits(want.timestamp, options.timestamp));
        differs("TSecr", want.echo.is_some_and(|echo| options.timestamp.is_none_or(|(_, got)| got != echo)));
        differs("SACK blocks", !want.any_sack && got.sack != want.sack);
        differs("ECN bits", want.ecn.is_some_and(|ecn| got.raw.ecn != ecn));
        wrong
    }
}

fn fits<T: PartialEq>(want: Want<T>, got: Option<T>) -> bool {
    match want {
        Want::Any => true,
        Want::Absent => got.is_none(),
        Want::Is(value) => got == Some(value),
    }
}

/// What the service of the current port has seen.
impl Script {
    #[track_caller]
    fn next_event(&mut self) -> Option<(Instant, AppEvent)> {
        self.settle();
        let mut log = self.arms[0].log.borrow_mut();
        log.conns.get_mut(&self.port).and_then(|conn| conn.events.pop_front())
    }

    #[track_caller]
    fn expect_event(&mut self, what: &str, fits: impl FnOnce(AppEvent) -> bool) -> Instant {
        match self.next_event() {
            Some((at, event)) if fits(event) => {
                self.note(format_args!("service {event:?}"));
                at
            }
            other => {
                self.fail(&format!("the service was to see: {what}\nbut sees: {:?}", other.map(|(_, event)| event)))
            }
        }
    }

    /// The connection is established.
    #[track_caller]
    pub fn expect_opened(&mut self) {
        self.expect_event("opened", |event| matches!(event, AppEvent::Opened(_)));
    }

    /// The connection could not be made.
    #[track_caller]
    pub fn expect_failed(&mut self, why: ConnectError) {
        self.expect_event(&format!("{why:?}"), |event| event == AppEvent::Failed(why));
    }

    /// The service is called at the time that it asked for.
    #[track_caller]
    pub fn expect_timer(&mut self) -> Instant {
        self.expect_event("its timer", |event| event == AppEvent::Timer)
    }

    /// The service is told that there is room for what it offered.
    #[track_caller]
    pub fn expect_writable(&mut self) {
        self.expect_event("room", |event| event == AppEvent::Writable);
    }

    /// The peer has finished.
    #[track_caller]
    pub fn expect_peer_closed(&mut self) {
        self.expect_event("the peer's end", |event| event == AppEvent::PeerClosed);
    }

    /// The connection is over.
    #[track_caller]
    pub fn expect_closed(&mut self, why: CloseReason) {
        self.expect_event(&format!("closed: {why:?}"), |event| event == AppEvent::Closed(why));
    }

    /// The connection is over, for whatever reason.
    #[track_caller]
    pub fn expect_any_end(&mut self) {
        self.expect_event("closed", |event| matches!(event, AppEvent::Closed(_)));
    }

    /// Whether the connection has been opened, in which case that has been expected.
    pub fn has_opened(&mut self) -> bool {
        matches!(self.next_event(), Some((_, AppEvent::Opened(_))))
    }

    /// The service has seen nothing that has not been expected.
    #[track_caller]
    pub fn expect_no_event(&mut self) {
        if let Some((_, event)) = self.next_event() {
            self.fail(&format!("the service was to see nothing, but sees: {event:?}"));
        }
    }

    /// So many bytes have been delivered to the service since the connection was opened.
    #[track_caller]
    pub fn expect_delivered(&mut self, bytes: Rel) {
        self.settle();
        let delivered = self.arms[0].log.borrow().conns.get(&self.port).map_or(0, |conn| conn.delivered);
        if delivered != bytes {
            self.fail(&format!("{bytes} bytes were to have been delivered to the service, but {delivered} have been"));
        }
    }

    /// The connection still works both ways: the peer's next byte, `seq`, is delivered, the worker's next byte, `next`,
    /// is sent.
    #[track_caller]
    pub fn expect_alive(&mut self, seq: Rel, next: Rel) {
        self.expect_nothing();
        self.expect_no_event();
        self.inject(data(seq, 1).ack(next));
        self.write(1);
        self.expect_delivered(seq);
        let got = self.pending.iter().find(|got| got.len == 1 && got.seq == next && got.ack == seq + 1).cloned();
        if got.is_none() {
            self.fail(&format!("expected the byte {next} with an acknowledgement of {}", seq + 1));
        }
        self.pending.clear();
        self.inject(super::segment::ack(seq + 1, next + 1));
        self.expect_nothing_for(ms(1));
    }
}
