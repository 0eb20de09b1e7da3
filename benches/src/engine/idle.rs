//! Memory of established, idle connections.

use super::memory::resident;
use super::{Pair, PairConfig, PairOptions};
use crate::client::echo::{Acks, Requests};
use crate::client::{Agreed, BenchError};
use linerate_bypass::BURST;
use linerate_bypass::memory_nic::MemoryNic;
use linerate_load::services;
use linerate_stack::Engine;
use serde::Serialize;
use std::ops::Range;
use std::time::Duration;

/// Virtual time before connections count as idle, and its number of turns: longer than a delayed ACK, probe or
/// retransmission of the last echo.
const SILENCE: (Duration, u32) = (Duration::from_secs(2), 2000);

/// Memory of connections.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Idle {
    /// Half of the connections; the second measurement has twice as many.
    pub connections: usize,
    /// Growth of the process's anonymous resident memory per connection in bytes, from none to `connections`.
    pub first_half: f64,
    /// The same from `connections` to twice as many.
    pub second_half: f64,
    /// The same from none to twice as many: the published value. Doublings of tables average out.
    pub bytes: f64,
    /// Packets held by the connections in total.
    pub packets_held: usize,
}

/// Opens `connections`, then as many again. One request of `size` bytes is echoed and acknowledged on each, so that
/// memory retained after an echo is included.
///
/// The client's memory is excluded: it is resident before.
pub fn measure<E: Engine<MemoryNic>>(
    connections: usize,
    size: usize,
    timestamps: bool,
) -> Result<(Idle, Option<Agreed>), BenchError> {
    let all = 2 * connections;
    let config = PairConfig {
        connections: all,
        tuples: all,
        packets_held: 0,
        options: PairOptions { timestamps, ..PairOptions::default() },
        segmentation: false,
    };
    let orders = [0..connections, connections..all].map(|half| (half.clone(), Requests::new(half, size, Acks::Alone)));
    let mut pair = Pair::<E, _>::new(&config, |_, _| services::Echo)?;
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
) -> Result<(), BenchError> {
    let n = flows.len();
    pair.open(flows)?;
    pair.in_bursts(n, BURST, |pair, n| {
        requests.send(pair.client(), n)?;
        pair.converse(n, |client| requests.check(client))
    })?;
    // The final acknowledgements.
    pair.settle();
    Ok(())
}
