//! Devices that stay open between the networks of one program.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Devices = Vec<(String, Arc<dyn Any + Send + Sync>)>;

/// Devices by their options, while a [`KeptDevices`] exists.
static KEPT: Mutex<Option<Devices>> = Mutex::new(None);

/// Guard that keeps RoCE devices open until it is dropped.
///
/// DPDK starts once in a process, so that a program can open its port again only with the same device. A program that
/// runs one network needs no guard.
#[derive(Debug)]
pub struct KeptDevices(());

impl KeptDevices {
    /// Keeps devices that are opened from now on.
    #[expect(clippy::new_without_default, reason = "a guard has an effect")]
    pub fn new() -> Self {
        kept().get_or_insert_default();
        KeptDevices(())
    }
}

impl Drop for KeptDevices {
    fn drop(&mut self) {
        // The port closes without the lock.
        let devices = kept().take();
        drop(devices);
    }
}

fn kept() -> MutexGuard<'static, Option<Devices>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the kept device with these options.
#[cfg(all(feature = "rdma", feature = "dpdk"))]
pub(crate) fn find<D: Any + Send + Sync>(options: &str) -> Option<Arc<D>> {
    let kept = kept();
    let (_, device) = kept.iter().flatten().find(|(other, _)| other == options)?;
    Arc::clone(device).downcast().ok()
}

/// Keeps a device, if a guard exists.
#[cfg(all(feature = "rdma", feature = "dpdk"))]
pub(crate) fn keep<D: Any + Send + Sync>(options: String, device: &Arc<D>) {
    if let Some(kept) = &mut *kept() {
        kept.push((options, Arc::clone(device) as Arc<dyn Any + Send + Sync>));
    }
}
