//! UD queue pairs: state transitions, and datagrams in flight.

use super::{PKEYS, Request};
use crate::memory::{Denied, Need, read, write};
use crate::world::{World, errno, require};
use linerate_rdma_provider::{
    GRH_LEN, Handle, Operation, QpCap, QpInitAttr, QpState, Sge, Transition, WcOpcode, WcStatus, WorkCompletion,
};
use std::io;

/// Datagram in flight.
pub(crate) struct Datagram {
    /// Sending queue pair, which may be gone, and its number.
    from: Handle,
    source: u32,
    /// Destination.
    gid: [u8; 16],
    partition: u16,
    mac: Option<u32>,
    qp: u32,
    key: u32,
    /// Time of arrival.
    due: u64,
    bytes: Vec<u8>,
}

impl World {
    pub fn create_ud_qp(&mut self, device: usize, pd: Handle, config: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        require(!self.devices[device].is_iwarp(), libc::EOPNOTSUPP)?;
        let made = self.create_qp(device, pd, config)?;
        self.qps[made.0].datagrams = Some(0);
        Ok(made)
    }

    /// Returns true if the transition applies to the type of the queue pair (IBA table 96).
    pub fn is_of_its_kind(&self, qp: Handle, transition: &Transition) -> bool {
        let is_of_datagrams = match transition {
            Transition::Init { .. } | Transition::Rtr { .. } | Transition::Rts { .. } => false,
            Transition::InitUd { .. } | Transition::RtrUd | Transition::RtsUd { .. } => true,
            Transition::Error | Transition::Reset => return true,
        };
        is_of_datagrams == self.qps[qp].datagrams.is_some()
    }

    /// Performs a transition that only UD queue pairs have.
    pub fn modify_datagrams(&mut self, qp: Handle, transition: &Transition) -> io::Result<()> {
        let device = self.qps.device(qp);
        let has_port = |port| self.devices[device].has_port(port);
        let object = &mut self.qps[qp];
        match *transition {
            Transition::InitUd { port, partition, key } => {
                require(matches!(object.state, QpState::Reset | QpState::Init), libc::EINVAL)?;
                require(has_port(port) && partition < PKEYS, libc::EINVAL)?;
                (object.state, object.port, object.partition) = (QpState::Init, port, partition);
                object.datagrams = Some(key);
            }
            Transition::RtrUd => {
                require(object.state == QpState::Init, libc::EINVAL)?;
                object.state = QpState::Rtr;
            }
            Transition::RtsUd { psn } => {
                let is_valid = object.state == QpState::Rtr && psn < 1 << 24;
                require(is_valid, libc::EINVAL)?;
                object.state = QpState::Rts;
            }
            _ => return Err(errno(libc::EINVAL)),
        }
        Ok(())
    }

    /// Sends the next datagram of a queue pair, which completes its request.
    pub fn emit(&mut self, handle: Handle) {
        let request = self.qps[handle].sends[0].clone();
        let status = match self.due_fault(handle) {
            Some(status) => status,
            None => self.send_datagram(handle, &request),
        };
        self.end_send(handle, status);
    }

    fn send_datagram(&mut self, handle: Handle, request: &Request) -> WcStatus {
        let Operation::Datagram { address, qp, key } = request.operation else { return WcStatus::LocalQp };
        let (device, sender) = (self.qps.device(handle), &self.qps[handle]);
        let (pd, port, source, own_key) = (sender.pd, sender.port, sender.number, sender.datagrams.unwrap_or(0));
        let Some(address) = self.addresses.get(address).filter(|address| address.pd == pd) else {
            return WcStatus::LocalQp;
        };
        let (gid, mac) = (address.path.gid, address.mac);
        let classes = (address.path.traffic_class, address.path.service_level);
        let partition = self.qps[handle].partition;
        self.qps[handle].classes = classes;
        self.datagram_counts.sent += 1;
        if request.len() > u64::from(self.devices[device].config.mtu.bytes()) {
            // Neither a packet nor an error (IBA C10-93.1.1), as in Soft-RoCE.
            self.datagram_counts.too_long += 1;
            return WcStatus::Success;
        }
        let bytes = match &request.inline {
            Some(bytes) => bytes.clone(),
            None => match self.local_spans(pd, &request.sges, Need::Read) {
                Ok(spans) => read(&spans),
                Err(Denied) => return WcStatus::LocalProtection,
            },
        };
        let faults = self.datagram_faults;
        let is_lost = faults.lost_percent > 0 && self.random.u32(0..100) < faults.lost_percent;
        if is_lost || !self.devices[device].carries(port) {
            self.datagram_counts.lost += 1;
            return WcStatus::Success;
        }
        let delay = if faults.delay_steps > 0 { self.random.u64(0..=faults.delay_steps) } else { 0 };
        // A key with the highest bit set selects the local Q_Key (IBA 10.2.5).
        let key = if key >> 31 == 1 { own_key } else { key };
        let due = self.now + delay;
        self.air.push(Datagram { from: handle, source, gid, partition, mac, qp, key, due, bytes });
        WcStatus::Success
    }

    /// Returns the datagrams that may arrive next, with their times. Datagrams of one queue pair stay in order unless
    /// faults reorder them.
    pub fn next_datagrams(&self) -> Vec<(usize, u64)> {
        let is_next = |index: usize| {
            let from = self.air[index].from;
            self.datagram_faults.delay_steps > 0 || self.air[..index].iter().all(|before| before.from != from)
        };
        (0..self.air.len()).filter(|&index| is_next(index)).map(|index| (index, self.air[index].due)).collect()
    }

    /// Delivers a datagram or silently drops it: errors are not the receiver's fault (IBA 9.9.3.1, class D).
    pub fn arrive(&mut self, index: usize) {
        let datagram = self.air.remove(index);
        let peer = self.numbers.get(&datagram.qp).copied().filter(|&peer| {
            let there = &self.devices[self.qps.device(peer)];
            self.qps[peer].datagrams.is_some()
                && self.qps[peer].receives()
                && there.has_gid(self.qps[peer].port, datagram.gid)
                && datagram.mac == Some(there.mac)
                && datagram.partition == self.qps[peer].partition
        });
        let Some(peer) = peer else {
            self.datagram_counts.unknown += 1;
            return;
        };
        if !self.devices[self.qps.device(peer)].carries(self.qps[peer].port) {
            self.datagram_counts.lost += 1;
        } else if self.qps[peer].datagrams != Some(datagram.key) {
            self.datagram_counts.wrong_key += 1;
        } else {
            self.receive_datagram(peer, &datagram);
        }
    }

    /// Stores a datagram in the next buffer. A datagram without a fitting buffer is dropped. A buffer that is too short
    /// stays posted, unless it is of a shared queue (class E, and Soft-RoCE).
    fn receive_datagram(&mut self, peer: Handle, datagram: &Datagram) {
        let needed = GRH_LEN + datagram.bytes.len();
        let fits = |sges: &[Sge]| sges.iter().map(|sge| u64::from(sge.len)).sum::<u64>() >= needed as u64;
        let receiver = &self.qps[peer];
        let is_dropped = receiver.receives.front().is_some_and(|buffer| !fits(&buffer.sges));
        if is_dropped {
            self.datagram_counts.short_buffer += 1;
            return;
        }
        let (pd, cq, number) = (receiver.pd, receiver.config.recv_cq, receiver.number);
        let Some((buffer, slot)) = self.take_buffer(peer) else {
            self.datagram_counts.no_buffer += 1;
            return;
        };
        let status = match self.local_spans(pd, &buffer.sges, Need::Write) {
            _ if !fits(&buffer.sges) => WcStatus::RemoteInvalidRequest,
            Err(Denied) => WcStatus::LocalProtection,
            Ok(spans) => {
                // The device may write anything in front of the message.
                write(&spans, &[&[0xff; GRH_LEN][..], &datagram.bytes].concat());
                WcStatus::Success
            }
        };
        match status {
            WcStatus::Success => self.datagram_counts.received += 1,
            _ => self.datagram_counts.short_buffer += u64::from(status == WcStatus::RemoteInvalidRequest),
        }
        let completion = WorkCompletion::new(buffer.id, status, WcOpcode::Receive, needed as u32, number);
        let completion = WorkCompletion { source: datagram.source, ..completion };
        self.complete(cq, completion, slot);
        if status == WcStatus::LocalProtection {
            self.break_pair(peer, None);
        }
    }
}
