//! Differences of iWARP: a connection moves its queue pairs to RTS, and both end together.

use super::World;
use crate::table::{errno, require};
use linerate_rdma_provider::{
    Access, CmConnParam, CmEvent, CmEventKind, Handle, PathOptions, Provider, QpOptions, QpState, Retry,
};
use std::io;
use std::sync::Arc;

/// Retries of TCP are limited in time. A message without a buffer ends the connection.
const OPTIONS: QpOptions = QpOptions {
    retry: Retry { timeout: 16, retries: 7, rnr_retries: 0, min_rnr_timer: 1 },
    path: PathOptions { traffic_class: 0, service_level: 0, pkey_index: 0 },
};

impl World {
    /// Notes the identifier of the connection that `parameters` names a queue pair for, which must be in INIT.
    pub fn take_over(
        &mut self,
        index: usize,
        id: Handle,
        parameters: &CmConnParam,
        is_passive: bool,
    ) -> io::Result<()> {
        if !self.sites[index].config.is_iwarp() {
            return Ok(());
        }
        let site = &mut self.sites[index];
        let qp = site.qp_by_number(parameters.qp).ok_or_else(|| errno(libc::EINVAL))?;
        require(site.device.driver().engine.qp(qp)?.state == QpState::Init, libc::EINVAL)?;
        site.qps.entry(qp.0).or_default().iwarp = Some((id, is_passive));
        Ok(())
    }

    fn qp_of(&self, index: usize, id: Handle) -> Option<Handle> {
        let is_its = |iwarp: Option<(Handle, bool)>| iwarp.is_some_and(|(of, _)| of == id);
        self.sites[index].qps.iter().find(|(_, qp)| is_its(qp.iwarp)).map(|(&qp, _)| Handle(qp))
    }

    /// Moves the queue pair of an accepted connection to RTS, as the kernel does. Its access rights are those of the
    /// regions.
    pub fn join(&mut self, index: usize, id: Handle) -> io::Result<()> {
        let Some(qp) = self.qp_of(index, id) else { return Ok(()) };
        let device = &self.sites[index].device;
        for state in [QpState::Rtr, QpState::Rts] {
            // SAFETY: both objects are live: destroyed queue pairs have no identifier, and the caller uses this one.
            unsafe { device.modify_qp_by_cm(qp, id, state, &OPTIONS) }?;
        }
        let mut driver = device.driver();
        let access = Access { remote_read: true, remote_write: true, ..Access::default() };
        driver.engine.parts().0.get_mut(qp)?.access = access;
        Ok(())
    }

    /// Makes the queue pair of a connection fail, which ends the connection.
    pub fn end(&mut self, index: usize, id: Handle) {
        if let Some(qp) = self.qp_of(index, id) {
            self.fail(index, qp, None);
        }
    }

    /// Ends the connections of queue pairs that have failed, or of `gone`.
    pub fn sever(&mut self, index: usize, gone: Option<Handle>) {
        let site = &mut self.sites[index];
        if !site.config.is_iwarp() {
            return;
        }
        let device = Arc::clone(&site.device);
        for (&handle, sim) in &mut site.qps {
            let state = device.driver().engine.qp(Handle(handle)).map(|qp| qp.state);
            let has_ended = state.is_ok_and(|state| state == QpState::Error) || gone == Some(Handle(handle));
            if let Some((id, _)) = sim.iwarp.take_if(|_| has_ended) {
                // SAFETY: the device detects a destroyed identifier.
                _ = unsafe { device.cm_disconnect(id) };
            }
        }
    }

    /// Returns an event of a connection as iWARP reports it.
    pub fn translate(&mut self, index: usize, event: CmEvent) -> CmEvent {
        if !self.sites[index].config.is_iwarp() {
            return event;
        }
        let device = Arc::clone(&self.sites[index].device);
        match event.kind {
            CmEventKind::Response => {
                let joined = self.join(index, event.id);
                // SAFETY: the identifier of an event is live.
                match joined.and_then(|()| unsafe { device.cm_establish(event.id) }) {
                    Ok(()) => CmEvent { kind: CmEventKind::Established, ..event },
                    Err(_) => CmEvent { kind: CmEventKind::Failed, ..event },
                }
            }
            CmEventKind::Disconnected => {
                self.end(index, event.id);
                // SAFETY: as above.
                _ = unsafe { device.cm_disconnect(event.id) };
                event
            }
            _ => event,
        }
    }
}
