//! Memory of connections that are established and silent.

use super::memory::resident;
use super::{Pair, PairConfig};
use crate::client::echo::{Acks, Requests};
use crate::client::{Agreed, Wrong};
use linerate_bypass::BURST;
use linerate_bypass::memory_nic::MemoryNic;
use linerate_load::services;
use linerate_stack::Engine;
use serde::Serialize;
use std::ops::Range;
use std::time::Duration;

/// Virtual time that passes before connections count as idle, in how many turns: longer than a delayed
/// acknowledgement, a probe or a retransmission of the last echo could wait.
const SILENCE: (Duration, u32) = (Duration::from_secs(2), 2000);

/// What connections need.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Idle {
    /// Half of them; there are as many again when the second measurement is made.
    pub connections: usize,
    /// Growth of the process' anonymous resident memory from no connection to `connections`, for each of them, in
    /// bytes.
    pub first_half: f64,
    /// The same from `connections` to twice as many.
    pub second_half: f64,
    /// The same from no connection to twice as many: the figure. Tables that double at some moment do so within it.
    pub bytes: f64,
    /// Packets that the connections hold, in all.
    pub packets_held: usize,
}

/// Opens `connections`, then as many again. On each a request of `size` bytes is echoed, and the echo acknowledged, so
/// that what was needed for that is included if it is kept.
///
/// The client's own memory is not in the figures: it is there, written to, before.
pub fn measure<E: Engine<MemoryNic>>(
    connections: usize,
    size: usize,
    timestamps: bool,
) -> Result<(Idle, Option<Agreed>), Wrong> {
    let all = 2 * connections;
    let config = PairConfig {
        connections: all,
        tuples: all,
        packets_held: 0,
        timestamps,
        software_checksum: false,
        segmentation: false,
    };
    let orders = [0..connections, connections..all].map(|half| (half.clone(), Requests::new(half, size, Acks::Alone)));
    let mut pair = Pair::<E, _>::new(&config, services::Echo)?;
    let (held, start) = (pair.packets_held(), resident()?);
    let mut after = [start; 2];
    for (half, after) in orders.into_iter().zip(&mut after) {
        let (flows, requests) = half;
        use_once(&mut pair, flows, requests)?;
        pair.wait(SILENCE.0, SILENCE.1);
        *after = resident()?;
    }
    let growth = |from: u64, to: u64, connections| to.saturating_sub(from) as f64 / connections as f64;
    let idle = Idle {
        connections,
        first_half: growth(start, after[0], connections),
        second_half: growth(after[0], after[1], connections),
        bytes: growth(start, after[1], all),
        packets_held: pair.packets_held().saturating_sub(held),
    };
    Ok((idle, pair.client().agreed()))
}

fn use_once<E: Engine<MemoryNic>>(
    pair: &mut Pair<E, services::Echo>,
    flows: Range<usize>,
    mut requests: Requests,
) -> Result<(), Wrong> {
    let mut left = flows.len();
    pair.open(flows)?;
    while left > 0 {
        let n = left.min(BURST);
        requests.send(pair.client(), n)?;
        pair.converse(n, |client| requests.check(client))?;
        left -= n;
    }
    // The last acknowledgements.
    pair.settle();
    Ok(())
}
