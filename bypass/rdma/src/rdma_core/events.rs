//! Completion channels and asynchronous events.

use super::RdmaCore;
use super::answer::{done, is_nothing, made, object, set_nonblocking};
use crate::provider::{AsyncEvent, Handle};
use rdma_mummy_sys as sys;
use std::io;
use std::mem::zeroed;
use std::os::fd::RawFd;
use std::ptr::null_mut;

/// `ibv_async_event` with a plain number as its type: the bindings' enumeration has no value for types of later
/// kernels.
#[repr(C)]
struct Event {
    element: sys::ibv_async_event_element_t,
    kind: u32,
}

const _: () = {
    assert!(size_of::<Event>() == size_of::<sys::ibv_async_event>());
    assert!(align_of::<Event>() == align_of::<sys::ibv_async_event>());
    assert!(std::mem::offset_of!(Event, element) == std::mem::offset_of!(sys::ibv_async_event, element));
    assert!(std::mem::offset_of!(Event, kind) == std::mem::offset_of!(sys::ibv_async_event, event_type));
};

pub(super) fn async_event(native: &RdmaCore) -> io::Result<Option<AsyncEvent>> {
    // SAFETY: a union of pointers and a number, for which zero is valid.
    let mut event: Event = unsafe { zeroed() };
    let out = (&raw mut event).cast::<sys::ibv_async_event>();
    // SAFETY: the context is open. `Event` has the layout of the structure that the call writes and does not read.
    match done(unsafe { sys::ibv_get_async_event(native.context.as_ptr(), out) }) {
        Ok(()) => {}
        Err(error) if is_nothing(&error) => return Ok(None),
        Err(error) => return Err(error),
    }
    let read = value(&event);
    // SAFETY: the event is acknowledged once. Its object is live, because its destruction waits for this.
    unsafe { sys::ibv_ack_async_event(out) };
    Ok(Some(read))
}

fn value(event: &Event) -> AsyncEvent {
    // SAFETY: the union was zeroed before a member was written; its members are at most a pointer.
    let object = Handle(unsafe { event.element.cq }.expose_provenance());
    // SAFETY: as above.
    let port = u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
    const CQ_ERR: u32 = sys::ibv_event_type::IBV_EVENT_CQ_ERR as u32;
    const QP_FATAL: u32 = sys::ibv_event_type::IBV_EVENT_QP_FATAL as u32;
    const QP_REQ_ERR: u32 = sys::ibv_event_type::IBV_EVENT_QP_REQ_ERR as u32;
    const QP_ACCESS_ERR: u32 = sys::ibv_event_type::IBV_EVENT_QP_ACCESS_ERR as u32;
    const COMM_EST: u32 = sys::ibv_event_type::IBV_EVENT_COMM_EST as u32;
    const SRQ_ERR: u32 = sys::ibv_event_type::IBV_EVENT_SRQ_ERR as u32;
    const QP_LAST_WQE_REACHED: u32 = sys::ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED as u32;
    const PORT_ACTIVE: u32 = sys::ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32;
    const PORT_ERR: u32 = sys::ibv_event_type::IBV_EVENT_PORT_ERR as u32;
    const GID_CHANGE: u32 = sys::ibv_event_type::IBV_EVENT_GID_CHANGE as u32;
    const DEVICE_FATAL: u32 = sys::ibv_event_type::IBV_EVENT_DEVICE_FATAL as u32;
    match event.kind {
        CQ_ERR => AsyncEvent::CqError(object),
        QP_FATAL => AsyncEvent::QpFatal(object),
        QP_REQ_ERR => AsyncEvent::QpRequestError(object),
        QP_ACCESS_ERR => AsyncEvent::QpAccessError(object),
        COMM_EST => AsyncEvent::CommEstablished(object),
        SRQ_ERR => AsyncEvent::SrqError(object),
        QP_LAST_WQE_REACHED => AsyncEvent::LastWqeReached(object),
        PORT_ACTIVE => AsyncEvent::PortActive(port),
        PORT_ERR => AsyncEvent::PortError(port),
        GID_CHANGE => AsyncEvent::GidChange(port),
        DEVICE_FATAL => AsyncEvent::DeviceFatal,
        other => AsyncEvent::Other(other),
    }
}

pub(super) fn create_comp_channel(native: &RdmaCore) -> io::Result<(Handle, RawFd)> {
    // SAFETY: the context is open.
    let channel = unsafe { sys::ibv_create_comp_channel(native.context.as_ptr()) };
    let handle = made(channel)?;
    // SAFETY: the channel was created above.
    let descriptor = unsafe { (*channel).fd };
    // SAFETY: the channel keeps the descriptor open.
    if let Err(error) = unsafe { set_nonblocking(descriptor) } {
        // SAFETY: nothing else has the channel.
        unsafe { sys::ibv_destroy_comp_channel(channel) };
        return Err(error);
    }
    Ok((handle, descriptor))
}

/// # Safety
/// As for [`Provider::get_cq_event`](crate::provider::Provider::get_cq_event).
pub(super) unsafe fn get_cq_event(channel: Handle) -> io::Result<bool> {
    let (mut cq, mut context) = (null_mut(), null_mut());
    // SAFETY: the channel is live.
    match done(unsafe { sys::ibv_get_cq_event(object(channel), &mut cq, &mut context) }) {
        Ok(()) => {}
        Err(error) if is_nothing(&error) => return Ok(false),
        Err(error) => return Err(error),
    }
    // SAFETY: one event of this queue was taken; the caller keeps the queue live.
    unsafe { sys::ibv_ack_cq_events(cq, 1) };
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: u32, element: sys::ibv_async_event_element_t) -> AsyncEvent {
        value(&Event { element, kind })
    }

    #[test]
    fn events_name_their_object_or_port() {
        let qp = || sys::ibv_async_event_element_t { qp: std::ptr::without_provenance_mut(0x1000) };
        assert_eq!(of(1, qp()), AsyncEvent::QpFatal(Handle(0x1000)));
        assert_eq!(of(16, qp()), AsyncEvent::LastWqeReached(Handle(0x1000)));
        let port = || {
            // SAFETY: a union of pointers and a number.
            let mut element: sys::ibv_async_event_element_t = unsafe { zeroed() };
            element.port_num = 2;
            element
        };
        assert_eq!(of(10, port()), AsyncEvent::PortError(2));
        assert_eq!(of(9, port()), AsyncEvent::PortActive(2));
        assert_eq!(of(18, port()), AsyncEvent::GidChange(2));
        assert_eq!(of(8, port()), AsyncEvent::DeviceFatal);
    }

    #[test]
    fn unknown_event_type_is_a_number() {
        let nothing = || sys::ibv_async_event_element_t { cq: null_mut() };
        assert_eq!(of(4711, nothing()), AsyncEvent::Other(4711));
        assert_eq!(of(u32::MAX, nothing()), AsyncEvent::Other(u32::MAX));
    }
}
