//! What a load is to do, and what all of its workers need for it.

use super::keys::Scatter;
use super::one_sided::Exported;
use super::reply::Known;
use super::request::Protocol;
use super::values::Values;
use super::versions::Versions;
use super::zipf::Zipf;
use crate::OpenLoop;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What is to be asked of a key-value server.
#[derive(Debug, Clone)]
pub struct KvPlan {
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Connections of all workers together.
    pub connections: usize,
    /// Requests on the way on each connection: as many as there may be in an open loop, or else as many as there are.
    pub depth: usize,
    /// How many keys there are.
    pub keys: u64,
    /// How long values are.
    pub value_size: RangeInclusive<u32>,
    /// How many of the requests are GETs: between 0 and 1.
    pub get_ratio: f64,
    /// The k-th most popular key is asked for in proportion to k to the minus this.
    pub zipf: f64,
    /// What is kept to, if it is an open loop.
    pub open: Option<OpenLoop>,
    /// Where values are read that are not asked for.
    pub one_sided: Option<Exported>,
    /// Whether every key is set before.
    pub fill: bool,
    /// Whether the values that come are compared with those that were sent; without `fill`, nothing would be known of them.
    pub verify: bool,
}

/// What all workers of a load have in common.
#[derive(Debug)]
pub struct Keyspace {
    pub(super) plan: KvPlan,
    pub(super) zipf: Zipf,
    pub(super) scatter: Scatter,
    pub(super) values: Values,
    pub(super) versions: Option<Versions>,
    /// Of 2³² requests these are GETs.
    pub(super) gets: u64,
    /// Keys from here on have not been taken by any worker to fill.
    pub(super) to_fill: AtomicU64,
}

impl Keyspace {
    /// That of a load as `plan` has it; the values of another `run` are others.
    pub fn new(plan: KvPlan, run: u64) -> Arc<Self> {
        Arc::new(Keyspace {
            zipf: Zipf::new(plan.keys, plan.zipf),
            scatter: Scatter::new(plan.keys),
            values: Values::new(*plan.value_size.start(), *plan.value_size.end(), run),
            versions: plan.verify.then(|| Versions::new(plan.keys as usize)),
            gets: (plan.get_ratio * 4_294_967_296.0) as u64,
            to_fill: AtomicU64::new(if plan.fill { 0 } else { plan.keys }),
            plan,
        })
    }

    pub(super) fn known(&self) -> Option<Known<'_>> {
        self.versions.as_ref().map(|versions| Known { values: &self.values, versions })
    }
}
