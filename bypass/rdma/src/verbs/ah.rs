//! Addresses of ports, for datagrams.

use super::{Error, Pd, destroyed};
use crate::provider::{AhAttr, Handle, Provider};
use std::sync::Arc;

/// The way to a port, which any queue pair of datagrams of the domain may send by (`ibv_create_ah(3)`). Clones are the same, which is
/// destroyed with the last; requests that go by it have one.
pub struct Ah<C: Provider>(Arc<Inner<C>>);

struct Inner<C: Provider> {
    pd: Pd<C>,
    handle: Handle,
}

impl<C: Provider> Ah<C> {
    /// The way by `path`, for queue pairs of `pd`.
    pub fn new(pd: &Pd<C>, path: &AhAttr) -> Result<Self, Error> {
        // SAFETY: the domain is live.
        let made = unsafe { pd.provider().create_ah(pd.0.handle, path) };
        let handle = made.map_err(Error::new("make an address"))?;
        Ok(Ah(Arc::new(Inner { pd: pd.clone(), handle })))
    }

    /// Whether queue pairs of `pd` may send by it.
    #[inline]
    pub(super) fn is_of(&self, pd: &Pd<C>) -> bool {
        Arc::ptr_eq(&self.0.pd.0, &pd.0)
    }

    /// Whether there is a clone of it.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The device's name for it.
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
        // SAFETY: made in `new`, and destroyed once; requests that go by it keep it.
        destroyed("address", unsafe { self.pd.provider().destroy_ah(self.handle) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_rdma_sim::{DeviceConfig, Fabric, FabricConfig, Live, SimDevice};

    /// A domain, and the way to the device's own port.
    fn pd(fabric: &Fabric) -> (Pd<SimDevice>, AhAttr) {
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        let own = device.gids(1).unwrap()[0];
        (Pd::new(&device).unwrap(), AhAttr::to(own.raw, 0, &own))
    }

    #[test]
    fn it_keeps_its_domain_and_goes_with_nothing_left() {
        let fabric = Fabric::new(FabricConfig::default());
        let (pd, path) = pd(&fabric);
        let address = Ah::new(&pd, &path).unwrap();
        drop(pd);
        assert_eq!(fabric.live(), Live { pds: 1, addresses: 1, ..Live::default() });
        drop(address);
        assert_eq!(fabric.live(), Live::default());
    }

    #[test]
    fn there_is_none_by_a_port_that_is_not_there() {
        let (pd, path) = pd(&Fabric::new(FabricConfig::default()));
        assert!(Ah::new(&pd, &AhAttr { port: 2, ..path }).is_err());
    }
}
