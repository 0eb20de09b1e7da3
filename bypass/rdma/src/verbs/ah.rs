//! Address handles of UD queue pairs.

use super::{Error, Pd, destroyed};
use crate::provider::{AhAttr, Handle, Provider};
use std::sync::Arc;

/// Address handle, usable by any UD queue pair of the protection domain (`ibv_create_ah(3)`). It is destroyed with the
/// last clone; outstanding requests hold clones.
pub struct Ah<C: Provider>(Arc<Inner<C>>);

struct Inner<C: Provider> {
    pd: Pd<C>,
    handle: Handle,
}

impl<C: Provider> Ah<C> {
    /// Creates the address handle of `path` in `pd`.
    pub fn new(pd: &Pd<C>, path: &AhAttr) -> Result<Self, Error> {
        // SAFETY: the protection domain is live.
        let made = unsafe { pd.provider().create_ah(pd.0.handle, path) };
        let handle = made.map_err(Error::new("create an address handle"))?;
        Ok(Ah(Arc::new(Inner { pd: pd.clone(), handle })))
    }

    /// Returns true if the address handle belongs to `pd`.
    #[inline]
    pub(super) fn is_of(&self, pd: &Pd<C>) -> bool {
        Arc::ptr_eq(&self.0.pd.0, &pd.0)
    }

    /// Returns true if another clone exists.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns the handle of the provider.
    pub fn handle(&self) -> Handle {
        self.0.handle
    }
}

impl<C: Provider> Clone for Ah<C> {
    fn clone(&self) -> Self {
        Ah(self.0.clone())
    }
}

impl<C: Provider> Drop for Inner<C> {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once; outstanding requests keep it.
        destroyed("address handle", unsafe { self.pd.provider().destroy_ah(self.handle) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_roce::testing::{DeviceConfig, Fabric, FabricConfig, Live, SimDevice};

    /// Returns a protection domain, and the address of the device's own port.
    fn pd(fabric: &Fabric) -> (Pd<SimDevice>, AhAttr) {
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        let own = device.gids(1).unwrap()[0];
        (Pd::new(&device).unwrap(), AhAttr::to(own.raw, 0, &own))
    }

    #[test]
    fn ah_keeps_pd_and_is_destroyed_with_last_clone() {
        let fabric = Fabric::new(FabricConfig::default());
        let (pd, path) = pd(&fabric);
        let address = Ah::new(&pd, &path).unwrap();
        drop(pd);
        assert_eq!(fabric.live(), Live { pds: 1, addresses: 1, ..Live::default() });
        drop(address);
        assert_eq!(fabric.live(), Live::default());
    }

    #[test]
    fn ah_of_missing_port_is_refused() {
        let (pd, path) = pd(&Fabric::new(FabricConfig::default()));
        assert!(Ah::new(&pd, &AhAttr { port: 2, ..path }).is_err());
    }
}
