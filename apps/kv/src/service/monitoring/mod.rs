//! Metrics of a worker, and the log of slow requests.

pub mod latency;
pub mod slow_log;

use crate::commands::CommandType;
use crate::service::Kv;
use crate::store::KEYSPACES;
use linerate_service::inspect::ServiceMetric;

impl Kv {
    pub(in crate::service) fn all_metrics(&self) -> Vec<ServiceMetric> {
        let stats = &self.stats;
        let shard = self.server.hub().shard_stats(self.worker);
        let keys = (0..KEYSPACES as u8).map(|space| shard.keys(space)).sum();
        let removed = shard.counts();
        let mut metrics: Vec<ServiceMetric> = [
            ("hits", stats.hits),
            ("misses", stats.misses),
            ("keys", keys),
            ("expired", removed.expired),
            ("evicted", removed.evicted),
            ("evicted clients", self.server.tally.evicted),
            ("client memory", self.client_memory.sum() as u64),
            ("remote batches", stats.batches),
            ("remote requests", stats.batched),
        ]
        .map(|(name, value)| ServiceMetric { name, part: "", value })
        .into();
        let others = CommandType::ALL.map(|of| (of.label(), stats.by_type[of as usize]));
        // Only `GET` has no counter of its own.
        let gets = stats.commands.saturating_sub(stats.by_type.iter().sum());
        let commands = [("get", gets)].into_iter().chain(others);
        metrics.extend(commands.map(|(part, value)| ServiceMetric { name: "commands", part, value }));
        metrics.extend(self.latency.metrics());
        if let Some(store) = &self.stores[self.worker] {
            let classes = store.memory_by_class();
            metrics.extend(classes.map(|(part, bytes)| ServiceMetric { name: "memory", part, value: bytes as u64 }));
        }
        metrics
    }
}
