//! Lingering close: the last reply arrives, and input and time are bounded.

#[path = "../../../kernel/tests/services/lingering.rs"]
mod service;

use crate::common::{Net, SERVER};
use linerate_bypass::memory_nic::{LinkConfig, MemoryNic};
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, LINGER_BYTES, LINGER_TIME};
use linerate_stack::Engine;
use service::{Manner, REFUSAL, Refused, Refuser};

/// Bytes that the sockets of both ends may hold in addition to the discarded ones.
const QUEUED: usize = 8 << 20;

type Ends<EA, EB> = Net<Refused, Refuser, EA, EB>;

/// Runs a client of `manner` until the server's connection has closed, and checks that the client received the reply.
fn run<EA: Engine<MemoryNic>, EB: Engine<MemoryNic>>(manner: Manner, within: Duration) -> Ends<EA, EB> {
    let client = || Refused::new(Some(format!("{SERVER}:7").parse().unwrap()), manner);
    let mut net = Net::start(LinkConfig::default(), client, Refuser::default);
    net.expect("a refusal", Duration::from_secs(3), |net: &mut Ends<EA, EB>| net.b.service().refused == 1);
    net.expect("server closed", within, |net| !net.b.service().closed.is_empty());
    net.expect("client closed", Duration::from_secs(120), |net| net.a.service().closed.is_some());
    assert_eq!(net.a.service().received, REFUSAL);
    net
}

fn lingering_close_ends_without_rst_when_peer_closes<EA: Engine<MemoryNic>, EB: Engine<MemoryNic>>() {
    let net = run::<EA, EB>(Manner::Closes, Duration::from_secs(1));
    assert_eq!(net.b.service().closed, [CloseReason::Finished]);
    assert_eq!(net.a.service().closed, Some(CloseReason::Finished));
}

fn lingering_close_resets_endless_sender<EA: Engine<MemoryNic>, EB: Engine<MemoryNic>>() {
    let net = run::<EA, EB>(Manner::SendsOn, LINGER_TIME);
    assert_eq!(net.b.service().closed, [CloseReason::Aborted]);
    assert_eq!(net.a.service().closed, Some(CloseReason::Reset));
    let sent = net.a.service().sent;
    assert!((LINGER_BYTES..LINGER_BYTES + QUEUED).contains(&sent), "{sent} sent");
}

fn lingering_close_resets_peer_that_never_closes<EA: Engine<MemoryNic>, EB: Engine<MemoryNic>>() {
    let net = run::<EA, EB>(Manner::Waits, LINGER_TIME + Duration::from_millis(100));
    assert_eq!(net.b.service().closed, [CloseReason::Aborted]);
    assert_eq!(net.a.service().closed, Some(CloseReason::Reset));
    assert!(net.now().since(Instant::ZERO) >= LINGER_TIME);
}

with_each_engine!(
    lingering_close_ends_without_rst_when_peer_closes,
    lingering_close_resets_endless_sender,
    lingering_close_resets_peer_that_never_closes,
);
