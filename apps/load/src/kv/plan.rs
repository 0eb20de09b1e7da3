//! Parameters of a key-value load, and the state shared by its workers.

use super::keyspace::{HEAD, MOST_KEYS, Scatter, Values, Versions, Zipf};
use super::one_sided::Exported;
use super::protocol::{Expected, Protocol};
use crate::{OpenLoop, PlanError};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Parameters of a key-value load.
#[derive(Debug, Clone)]
pub struct KvPlan {
    pub protocol: Protocol,
    /// Connections of all workers.
    pub connections: usize,
    /// Outstanding requests on each connection: the limit in an open loop, the exact number otherwise.
    pub depth: usize,
    pub keys: u64,
    /// Range of value lengths in bytes.
    pub value_size: RangeInclusive<u32>,
    /// Fraction of GETs among the requests, from 0 to 1.
    pub get_ratio: f64,
    /// Zipf exponent of the keys' popularity.
    pub zipf: f64,
    /// Open loop; otherwise closed.
    pub open: Option<OpenLoop>,
    /// Server export for one-sided GETs.
    pub one_sided: Option<Exported>,
    /// Set if every key is set before measuring.
    pub fill: bool,
    /// Set if received values are compared with those sent. Requires `fill`: otherwise values are unknown.
    pub verify: bool,
}

impl Default for KvPlan {
    /// Returns a closed loop on one connection, of nine GETs to a SET, over a million keys with values of 64 bytes.
    fn default() -> Self {
        KvPlan {
            protocol: Protocol::default(),
            connections: 1,
            depth: 1,
            keys: 1_000_000,
            value_size: 64..=64,
            get_ratio: 0.9,
            zipf: 0.99,
            open: None,
            one_sided: None,
            fill: true,
            verify: false,
        }
    }
}

impl KvPlan {
    /// Largest exponent of the keys' popularity.
    pub const MAX_ZIPF: f64 = 10.0;
    /// Largest value in bytes: the limit of Redis.
    pub const MAX_VALUE: u32 = 512 << 20;

    /// Checks the ranges of the parameters, and the parameters against each other.
    pub fn check(&self) -> Result<(), PlanError> {
        let (least, most) = (*self.value_size.start(), *self.value_size.end());
        let ranges = [
            ("--keys", (1..=MOST_KEYS).contains(&self.keys)),
            ("--value-size", 0 < least && least <= most && most <= Self::MAX_VALUE),
            ("--get-ratio", (0.0..=1.0).contains(&self.get_ratio)),
            ("--zipf", (0.0..=Self::MAX_ZIPF).contains(&self.zipf)),
            ("--depth", self.depth > 0),
        ];
        if let Some((option, _)) = ranges.iter().find(|(_, is_valid)| !is_valid) {
            return Err(PlanError::OutOfRange(option));
        }
        if self.verify && (least as usize) < HEAD { Err(PlanError::TooShortToVerify(HEAD)) } else { Ok(()) }
    }
}

/// State shared by all workers of a load.
#[derive(Debug)]
pub struct Keyspace {
    pub(in crate::kv) plan: KvPlan,
    pub(in crate::kv) zipf: Zipf,
    pub(in crate::kv) scatter: Scatter,
    pub(in crate::kv) values: Values,
    pub(in crate::kv) versions: Option<Versions>,
    /// Number of GETs in 2³² requests.
    pub(in crate::kv) gets: u64,
    /// First key that no worker has taken for filling.
    pub(in crate::kv) to_fill: AtomicU64,
}

impl Keyspace {
    /// Creates the state of a load with `plan`. Values differ between runs.
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

    pub(in crate::kv) fn expected(&self) -> Option<Expected<'_>> {
        self.versions.as_ref().map(|versions| Expected { values: &self.values, versions })
    }
}
