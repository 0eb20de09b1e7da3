//! Conversions of connection manager types.

use crate::provider::{CmConnParam, CmEvent, CmEventKind, Handle, PrivateData};
use rdma_mummy_sys as sys;
use std::mem::zeroed;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::slice;

/// Socket address in the format of system calls.
pub(super) struct Address(libc::sockaddr_storage);

impl Address {
    pub(super) fn new(address: SocketAddr) -> Self {
        // SAFETY: plain numbers, for which zero is valid.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let out = &raw mut storage;
        match address {
            SocketAddr::V4(address) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage has the size and alignment of every address type.
                unsafe { out.cast::<libc::sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(address) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                // SAFETY: as above.
                unsafe { out.cast::<libc::sockaddr_in6>().write(raw) };
            }
        }
        Address(storage)
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

/// Returns the stored IPv4 or IPv6 address.
pub(super) fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let out: *const libc::sockaddr_storage = storage;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage has the size and alignment of every address type, all of which are plain numbers.
            let raw = unsafe { &*out.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { &*out.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Converts connection parameters. The result points to the private data of `with`.
pub(super) fn parameters(with: &CmConnParam) -> sys::rdma_conn_param {
    let private_data = with.private_data.bytes();
    sys::rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: private_data.len() as u8,
        responder_resources: with.responder_resources,
        initiator_depth: with.initiator_depth,
        flow_control: 1,
        retry_count: with.retries.min(7),
        rnr_retry_count: with.rnr_retries.min(7),
        srq: u8::from(with.is_shared),
        qp_num: with.qp,
    }
}

/// # Safety
/// The event was returned by `rdma_get_cm_event` for an identifier of reliable connections.
pub(super) unsafe fn event_value(event: &sys::rdma_cm_event) -> CmEvent {
    use sys::rdma_cm_event_type as kinds;
    let handle = |id: *mut sys::rdma_cm_id| Handle(id.expose_provenance());
    let kind = match event.event {
        kinds::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
        kinds::RDMA_CM_EVENT_ADDR_ERROR => CmEventKind::AddressFailed,
        kinds::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
        kinds::RDMA_CM_EVENT_ROUTE_ERROR => CmEventKind::RouteFailed,
        kinds::RDMA_CM_EVENT_CONNECT_REQUEST => CmEventKind::Request { listener: handle(event.listen_id) },
        kinds::RDMA_CM_EVENT_CONNECT_RESPONSE => CmEventKind::Response,
        kinds::RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::Failed,
        kinds::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Unreachable,
        kinds::RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
        kinds::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
        kinds::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
        kinds::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::Removed,
        kinds::RDMA_CM_EVENT_ADDR_CHANGE => CmEventKind::AddressChanged,
        kinds::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimeWaitExit,
        other => CmEventKind::Other(other),
    };
    let mut value = CmEvent {
        id: handle(event.id),
        kind,
        status: event.status,
        initiator_depth: 0,
        responder_resources: 0,
        qp: 0,
        private_data: PrivateData::default(),
    };
    let has_parameters = matches!(
        kind,
        CmEventKind::Request { .. } | CmEventKind::Response | CmEventKind::Rejected | CmEventKind::Established
    );
    if has_parameters {
        // SAFETY: these events write this member for reliable connections.
        let param = unsafe { &event.param.conn };
        // The peer's responder resources limit the local initiator depth and vice versa (rdma_get_cm_event(3)).
        value.initiator_depth = param.responder_resources;
        value.responder_resources = param.initiator_depth;
        value.qp = param.qp_num;
        if !param.private_data.is_null() {
            // SAFETY: the event contains that many bytes.
            let bytes = unsafe { slice::from_raw_parts(param.private_data.cast(), param.private_data_len.into()) };
            value.private_data = PrivateData::new(bytes);
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["10.9.0.1:7", "0.0.0.0:0", "[fd00::2]:65535"] {
            let there: SocketAddr = text.parse().unwrap();
            assert_eq!(address(&Address::new(there).0), Some(there));
        }
        let scoped = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 3).into();
        assert_eq!(address(&Address::new(scoped).0), Some(scoped));
        // SAFETY: plain numbers.
        assert_eq!(address(&unsafe { zeroed() }), None);
    }

    #[test]
    fn address_is_in_network_byte_order() {
        let Address(storage) = Address::new("10.9.0.1:7".parse().unwrap());
        // SAFETY: plain numbers, of at least this size.
        let bytes = unsafe { slice::from_raw_parts((&raw const storage).cast::<u8>(), 8) };
        assert_eq!(bytes[2..], [0, 7, 10, 9, 0, 1]);
    }

    fn given() -> CmConnParam {
        CmConnParam {
            qp: 17,
            responder_resources: 3,
            initiator_depth: 4,
            retries: 9,
            rnr_retries: 6,
            is_shared: true,
            private_data: PrivateData::new(b"hello"),
        }
    }

    #[test]
    fn parameters_contain_qp_number_and_saturate() {
        let with = given();
        let raw = parameters(&with);
        assert_eq!((raw.qp_num, raw.responder_resources, raw.initiator_depth, raw.srq), (17, 3, 4, 1));
        assert_eq!((raw.retry_count, raw.rnr_retry_count), (7, 6));
        assert_eq!((raw.private_data.addr(), raw.private_data_len), (with.private_data.bytes().as_ptr().addr(), 5));
    }

    fn event(kind: u32, with: &CmConnParam) -> CmEvent {
        let conn = parameters(with);
        let event = sys::rdma_cm_event {
            id: std::ptr::without_provenance_mut(0x1000),
            listen_id: std::ptr::without_provenance_mut(0x2000),
            event: kind,
            status: -110,
            param: sys::param_t { conn },
        };
        // SAFETY: the event is fully initialized.
        unsafe { event_value(&event) }
    }

    #[test]
    fn event_contains_peer_parameters() {
        let read = event(4, &given());
        assert_eq!((read.id, read.kind), (Handle(0x1000), CmEventKind::Request { listener: Handle(0x2000) }));
        assert_eq!((read.initiator_depth, read.responder_resources, read.qp, read.status), (3, 4, 17, -110));
        assert_eq!(read.private_data.bytes(), b"hello");
    }

    #[test]
    fn only_connect_events_contain_peer_parameters() {
        let kinds = [
            (0, CmEventKind::AddressResolved, false),
            (1, CmEventKind::AddressFailed, false),
            (2, CmEventKind::RouteResolved, false),
            (3, CmEventKind::RouteFailed, false),
            (5, CmEventKind::Response, true),
            (6, CmEventKind::Failed, false),
            (7, CmEventKind::Unreachable, false),
            (8, CmEventKind::Rejected, true),
            (9, CmEventKind::Established, true),
            (10, CmEventKind::Disconnected, false),
            (11, CmEventKind::Removed, false),
            (14, CmEventKind::AddressChanged, false),
            (15, CmEventKind::TimeWaitExit, false),
            (12, CmEventKind::Other(12), false),
        ];
        for (number, kind, carries) in kinds {
            let read = event(number, &given());
            assert_eq!((read.kind, read.private_data.bytes().is_empty()), (kind, !carries));
        }
    }
}
