//! Addresses of ports, for datagrams.

use super::{Domain, Error, destroyed};
use crate::calls::{Calls, Handle, Path};
use std::sync::Arc;

/// The way to a port, which any queue pair of datagrams of the domain may send by (`ibv_create_ah(3)`). Clones are the same, which is
/// destroyed with the last; requests that go by it have one.
pub struct AddressHandle<C: Calls>(Arc<Inner<C>>);

struct Inner<C: Calls> {
    domain: Domain<C>,
    handle: Handle,
}

impl<C: Calls> AddressHandle<C> {
    /// The way by `path`, for queue pairs of `domain`.
    pub fn new(domain: &Domain<C>, path: &Path) -> Result<Self, Error> {
        // SAFETY: the domain is live.
        let made = unsafe { domain.calls().create_address(domain.0.handle, path) };
        let handle = made.map_err(Error::new("make an address"))?;
        Ok(AddressHandle(Arc::new(Inner { domain: domain.clone(), handle })))
    }

    /// Whether queue pairs of `domain` may send by it.
    #[inline]
    pub(super) fn is_of(&self, domain: &Domain<C>) -> bool {
        Arc::ptr_eq(&self.0.domain.0, &domain.0)
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

impl<C: Calls> Clone for AddressHandle<C> {
    fn clone(&self) -> Self {
        AddressHandle(self.0.clone())
    }
}

impl<C: Calls> Drop for Inner<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and destroyed once; requests that go by it keep it.
        destroyed("address", unsafe { self.domain.calls().destroy_address(self.handle) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DeviceConfig, Fabric, FabricConfig, Live, Model};

    /// A domain, and the way to the device's own port.
    fn domain(fabric: &Fabric) -> (Domain<Model>, Path) {
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        let own = device.gids(1).unwrap()[0];
        (Domain::new(&device).unwrap(), Path::to(own.raw, 0, &own))
    }

    #[test]
    fn it_keeps_its_domain_and_goes_with_nothing_left() {
        let fabric = Fabric::new(FabricConfig::default());
        let (domain, path) = domain(&fabric);
        let address = AddressHandle::new(&domain, &path).unwrap();
        drop(domain);
        assert_eq!(fabric.live(), Live { domains: 1, addresses: 1, ..Live::default() });
        drop(address);
        assert_eq!(fabric.live(), Live::default());
    }

    #[test]
    fn there_is_none_by_a_port_that_is_not_there() {
        let (domain, path) = domain(&Fabric::new(FabricConfig::default()));
        assert!(AddressHandle::new(&domain, &Path { port: 2, ..path }).is_err());
    }
}
