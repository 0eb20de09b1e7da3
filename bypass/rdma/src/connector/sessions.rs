//! Sessions: handles of UD queue pairs, and address handles.

use crate::provider::{AhAttr, Handle, Provider};
use crate::verbs::{Ah, Error, Pd, UdQp};
use linerate_service::time::{Duration, Instant};
use std::collections::HashMap;

/// Maximum cached address handles.
const KEPT: usize = 1024;
/// Age from which an address handle serves no new session: it contains the MAC address that the peer had when it was
/// created.
const LIFETIME: Duration = Duration::from_secs(60);
/// Age below which an address handle is not renewed again: all sessions with a peer that has moved request a renewal.
const FRESH: Duration = Duration::from_millis(5);

/// Handle, number and Q_Key of the UD queue pair of a worker.
#[derive(Debug, Clone, Copy)]
pub struct UdQpHandle {
    /// Handle of the provider.
    pub handle: Handle,
    pub qp: u32,
    /// Q_Key (IBA 10.2.5).
    pub q_key: u32,
}

impl UdQpHandle {
    /// Returns the attributes of `datagrams`.
    pub fn of<C: Provider>(datagrams: &UdQp<C>) -> Self {
        UdQpHandle { handle: datagrams.handle(), qp: datagrams.number(), q_key: datagrams.key() }
    }
}

/// Cache of address handles. Each worker has its own handle per peer port, which its sessions share, because each
/// request changes the reference count.
pub(super) struct AhCache<C: Provider>(HashMap<(usize, AhAttr), (Ah<C>, Instant)>);

impl<C: Provider> Default for AhCache<C> {
    fn default() -> Self {
        AhCache(HashMap::new())
    }
}

impl<C: Provider> AhCache<C> {
    /// Returns the address handle of `path` for queue pairs of `pd`.
    pub fn to(&mut self, worker: usize, pd: &Pd<C>, path: &AhAttr, now: Instant) -> Result<Ah<C>, Error> {
        self.younger_than(LIFETIME, worker, pd, path, now)
    }

    /// Returns a new address handle of `path`, whose peer does not answer: its MAC address may have changed.
    pub fn renew(&mut self, worker: usize, pd: &Pd<C>, path: &AhAttr, now: Instant) -> Result<Ah<C>, Error> {
        self.younger_than(FRESH, worker, pd, path, now)
    }

    fn younger_than(
        &mut self,
        age: Duration,
        worker: usize,
        pd: &Pd<C>,
        path: &AhAttr,
        now: Instant,
    ) -> Result<Ah<C>, Error> {
        if let Some((ah, made)) = self.0.get(&(worker, *path))
            && *made + age > now
        {
            return Ok(ah.clone());
        }
        if self.0.len() >= KEPT {
            self.0.retain(|_, (ah, _)| ah.is_shared());
        }
        let ah = Ah::new(pd, path)?;
        self.0.insert((worker, *path), (ah.clone(), now));
        Ok(ah)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_roce::testing::{DeviceConfig, Fabric, FabricConfig};

    #[test]
    fn address_handles_are_shared_until_they_are_old_or_renewed() {
        let fabric = Fabric::new(FabricConfig::default());
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        let pd = Pd::new(&device).unwrap();
        let own = device.gids(1).unwrap()[0];
        let path = AhAttr::to(own.raw, 0, &own);
        let mut cache = AhCache::default();
        let at = |after: Duration| Instant::ZERO + after;
        let first = cache.to(0, &pd, &path, at(Duration::ZERO)).unwrap().handle();
        assert_eq!(cache.to(0, &pd, &path, at(LIFETIME / 2)).unwrap().handle(), first);
        let second = cache.to(0, &pd, &path, at(LIFETIME)).unwrap().handle();
        assert_ne!(first, second);
        let third = cache.renew(0, &pd, &path, at(LIFETIME + FRESH)).unwrap().handle();
        assert_ne!(second, third);
        assert_eq!(cache.renew(0, &pd, &path, at(LIFETIME + FRESH)).unwrap().handle(), third);
        assert_eq!(fabric.live().addresses, 1, "the others are destroyed");
    }
}
