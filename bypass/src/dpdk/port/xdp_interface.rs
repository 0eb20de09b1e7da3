//! Kernel interface that is prepared for AF_XDP sockets.

use super::PortConfig;
use super::dev_args::{self, PortRequest, PortSpec};
use super::error::OpenError;
use super::interface::{self, VlanTagsKept};
use super::port_lock::PortLock;
use crate::Via;
use crate::xdp::{Attachment, KernelSocket, NotReserved, SharedInterface, XdpError};
use std::io::ErrorKind;
use std::process;
use std::sync::Arc;

/// Interface whose frames an XDP program redirects to AF_XDP sockets: those of one port, or of the ports that several
/// processes open on queues of their own after the first has [prepared](Self::prepare) the interface.
#[derive(Debug)]
pub struct XdpInterface {
    attachment: Option<Attachment>,
    shared: Option<Arc<SharedInterface>>,
    vlan_tags: Option<VlanTagsKept>,
    _lock: PortLock,
    /// Process that prepared the interface.
    creator: u32,
}

impl XdpInterface {
    /// Prepares the interface of `via` for the ports of this process and its children.
    ///
    /// # Errors
    /// `via` is not an interface that can be prepared as `config` states.
    pub fn prepare(via: &Via, config: &PortConfig) -> Result<Self, OpenError> {
        let request = PortRequest { queues: config.queues.max(1), mac: config.mac, force: config.force };
        let spec = dev_args::port_spec(via, request)?;
        match via {
            Via::AfXdp { interface, .. } => XdpInterface::open(interface, &spec, config),
            _ => Err(OpenError::NotDpdk(via.to_string())),
        }
    }

    pub(super) fn open(interface: &str, spec: &PortSpec, config: &PortConfig) -> Result<Self, OpenError> {
        let lock = PortLock::of_interface(interface)?;
        let vlan_tags = VlanTagsKept::on(interface).ok_or_else(|| OpenError::VlanTagsRemoved(interface.to_owned()))?;
        let (shared, attachment) = attach(interface, spec, config)?;
        let sees_tags = attachment.as_ref().is_none_or(Attachment::sees_vlan_tags);
        if !sees_tags && interface::driver(interface).as_deref() == Some("veth") {
            tracing::warn!(
                "{}: this kernel does not show the VLAN tags of veth, so frames of every VLAN are received as \
                 untagged: run 'ethtool -K PEER txvlan off' for the other end of the veth, or use Linux 6.8 or later",
                spec.via
            );
        }
        let (vlan_tags, creator) = (Some(vlan_tags), process::id());
        Ok(XdpInterface { attachment, shared, vlan_tags, _lock: lock, creator })
    }

    /// Returns the part that is shared with the kernel.
    pub fn shared(&self) -> Option<&Arc<SharedInterface>> {
        self.shared.as_ref()
    }

    /// Returns whether the interface has lost its program.
    pub(super) fn is_detached(&self) -> bool {
        self.attachment.as_ref().is_some_and(|attachment| !attachment.is_attached())
    }
}

impl Drop for XdpInterface {
    fn drop(&mut self) {
        if self.creator != process::id() {
            // The other processes go on.
            std::mem::forget(self.vlan_tags.take());
        }
    }
}

/// Attaches the program that redirects the frames of an interface, before the driver opens its sockets.
fn attach(
    interface: &str,
    spec: &PortSpec,
    config: &PortConfig,
) -> Result<(Option<Arc<SharedInterface>>, Option<Attachment>), OpenError> {
    if !spec.shared {
        // With this option, the driver loads the program of the user.
        let has_program = spec.devices.iter().any(|device| device.arguments.contains("xdp_prog="));
        let attachment = (!has_program).then(|| Attachment::of_all(interface)).transpose();
        return attachment.map(|attachment| (None, attachment)).map_err(|error| match error {
            error if error.is_permission() => not_permitted(spec),
            error => OpenError::Device { via: spec.via.clone(), step: "opened", reason: error.to_string() },
        });
    }
    let of_kernel = config.addresses.iter().find(|address| interface::is_kernel_address(**address));
    if let Some(address) = of_kernel.filter(|_| config.endpoints.is_none()) {
        return Err(OpenError::KernelAddress { interface: interface.to_owned(), address: *address });
    }
    let failed = |reason| OpenError::NotShared { interface: interface.to_owned(), reason };
    if config.addresses.is_empty() {
        return Err(failed("the port has no address: leave ',share' out".to_owned()));
    }
    let shared = SharedInterface::attach(interface, &config.addresses, config.endpoints.clone());
    let (shared, attachment) = shared.map_err(|error| match error {
        XdpError::Port(NotReserved { error, .. }) if error.kind() == ErrorKind::PermissionDenied => {
            OpenError::NoPermission { via: spec.via.clone(), needs: "CAP_NET_BIND_SERVICE for ports below 1024" }
        }
        XdpError::Port(NotReserved { address, protocol, error }) => {
            OpenError::EndpointInUse { address, protocol, reason: error.to_string() }
        }
        XdpError::Socket(KernelSocket { local, is_listening }) => {
            OpenError::KernelSocket { local, kind: if is_listening { "listening socket" } else { "connection" } }
        }
        error if error.is_permission() => not_permitted(spec),
        error => failed(error.to_string()),
    })?;
    Ok((Some(Arc::new(shared)), Some(attachment)))
}

/// Returns the error of a missing capability for XDP programs.
fn not_permitted(spec: &PortSpec) -> OpenError {
    let needs = "CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN for its XDP program";
    OpenError::NoPermission { via: spec.via.clone(), needs }
}
