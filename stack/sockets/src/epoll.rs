//! Epoll sets (epoll(7)).
//!
//! A set lists the items whose sockets have changed. Readiness is computed when events are collected, so that an item
//! whose socket is no longer ready leaves the list without an event. A level-triggered item with an event stays in the
//! list.

use crate::service::{SocketId, Sockets};
use linerate_service::Transport;
use rustix::io::Errno;
use slab::Slab;
use std::collections::VecDeque;

/// Bits of epoll_event(3type).
pub(crate) mod bits {
    pub const IN: u32 = 0x1;
    pub const OUT: u32 = 0x4;
    pub const ERR: u32 = 0x8;
    pub const HUP: u32 = 0x10;
    pub const RDNORM: u32 = 0x40;
    pub const WRNORM: u32 = 0x100;
    pub const RDHUP: u32 = 0x2000;
    pub const EXCLUSIVE: u32 = 1 << 28;
    pub const ONESHOT: u32 = 1 << 30;
    pub const EDGE: u32 = 1 << 31;
    /// Conditions that are always reported.
    pub const ALWAYS: u32 = ERR | HUP;
    /// Bits that select a behaviour, not a condition.
    pub const MODES: u32 = 0xf000_0000;
    /// Bits of an item with EPOLLEXCLUSIVE.
    pub const OF_EXCLUSIVE: u32 = IN | OUT | ALWAYS | EXCLUSIVE | 1 << 29 | EDGE;
}

/// Epoll set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EpollId(pub(crate) u32);

impl EpollId {
    /// Returns the index of the set, which is reused after its end.
    pub fn index(self) -> u32 {
        self.0
    }

    /// Returns the set with this index.
    pub fn from_index(index: u32) -> Self {
        EpollId(index)
    }
}

/// Events of interest of one descriptor, and the value that its events carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// Conditions, and the bits EPOLLET and EPOLLONESHOT.
    pub events: u32,
    /// Value of the caller.
    pub data: u64,
}

/// Event of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Conditions.
    pub events: u32,
    /// Value of the caller.
    pub data: u64,
}

/// Object of an item of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Socket(SocketId),
    /// Set that is an item of another.
    Set(EpollId),
}

/// Item of a set that refers to a socket or another set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watcher {
    set: EpollId,
    item: u32,
    descriptor: i32,
}

#[derive(Debug)]
struct Item {
    target: Target,
    interest: Interest,
    /// True if the item is in the list.
    is_listed: bool,
}

/// Items of a set, and those that may have events.
#[derive(Debug, Default)]
pub(crate) struct EpollSet {
    items: Slab<Item>,
    listed: VecDeque<u32>,
    /// Items of other sets that refer to this one.
    watchers: Vec<Watcher>,
}

/// Maximum depth of sets in sets (epoll_ctl(2)).
const MAX_DEPTH: usize = 5;

impl EpollSet {
    fn list(&mut self, item: u32) {
        let listed = &mut self.items[item as usize].is_listed;
        if !std::mem::replace(listed, true) {
            self.listed.push_back(item);
        }
    }
}

impl Sockets {
    /// Creates an epoll set.
    pub fn epoll_create(&mut self) -> EpollId {
        EpollId(self.epolls.insert(EpollSet::default()) as u32)
    }

    /// Ends an epoll set.
    pub fn epoll_close(&mut self, id: EpollId) {
        if let Some(set) = self.epolls.try_remove(id.0 as usize) {
            for (_, item) in set.items {
                if let Some(watchers) = self.watchers_mut(item.target) {
                    watchers.retain(|watcher| watcher.set != id);
                }
            }
            set.watchers.into_iter().for_each(|watcher| self.remove_item(watcher));
        }
    }

    fn watchers(&self, target: Target) -> Option<&Vec<Watcher>> {
        match target {
            Target::Socket(id) => self.sockets.get(id.0 as usize).map(|socket| &socket.watchers),
            Target::Set(id) => self.epolls.get(id.0 as usize).map(|set| &set.watchers),
        }
    }

    fn watchers_mut(&mut self, target: Target) -> Option<&mut Vec<Watcher>> {
        match target {
            Target::Socket(id) => self.sockets.get_mut(id.0 as usize).map(|socket| &mut socket.watchers),
            Target::Set(id) => self.epolls.get_mut(id.0 as usize).map(|set| &mut set.watchers),
        }
    }

    /// Returns the number of levels of sets that contain `id`, itself included.
    fn levels_above(&self, id: EpollId) -> usize {
        let above = self.epolls.get(id.0 as usize).map_or(&[][..], |set| &set.watchers);
        1 + above.iter().map(|watcher| self.levels_above(watcher.set)).max().unwrap_or(0)
    }

    /// Returns the number of levels of sets in `id`, itself included, or `None` if `other` is among them.
    fn levels_below(&self, id: EpollId, other: EpollId) -> Option<usize> {
        if id == other {
            return None;
        }
        let mut below = 0;
        for (_, item) in self.epolls.get(id.0 as usize).into_iter().flat_map(|set| &set.items) {
            if let Target::Set(inner) = item.target {
                below = below.max(self.levels_below(inner, other)?);
            }
        }
        Some(below + 1)
    }

    /// Returns the number of sockets in the set.
    pub fn epoll_len(&self, id: EpollId) -> usize {
        self.epolls.get(id.0 as usize).map_or(0, |set| set.items.len())
    }

    /// Returns whether the set may have events.
    pub fn epoll_has_listed(&self, id: EpollId) -> bool {
        self.epolls.get(id.0 as usize).is_some_and(|set| !set.listed.is_empty())
    }

    fn watcher(&self, set: EpollId, target: Target, descriptor: i32) -> Option<Watcher> {
        self.watchers(target)?.iter().find(|watcher| watcher.set == set && watcher.descriptor == descriptor).copied()
    }

    /// Adds the socket or set of `descriptor` to the set (EPOLL_CTL_ADD).
    ///
    /// # Errors
    /// `EEXIST` if the set has the descriptor, `ELOOP` if sets would contain each other or be too deep, `EINVAL` for a
    /// set or other bits with EPOLLEXCLUSIVE.
    pub fn epoll_add(&mut self, id: EpollId, target: Target, descriptor: i32, interest: Interest) -> Result<(), Errno> {
        let is_exclusive = interest.events & bits::EXCLUSIVE != 0;
        if is_exclusive && (matches!(target, Target::Set(_)) || interest.events & !bits::OF_EXCLUSIVE != 0) {
            return Err(Errno::INVAL);
        }
        if self.watcher(id, target, descriptor).is_some() {
            return Err(Errno::EXIST);
        }
        if let Target::Set(inner) = target
            && self.levels_below(inner, id).is_none_or(|below| below + self.levels_above(id) > MAX_DEPTH)
        {
            return Err(Errno::LOOP);
        }
        let set = self.epolls.get_mut(id.0 as usize).ok_or(Errno::BADF)?;
        let item = set.items.insert(Item { target, interest, is_listed: false }) as u32;
        self.watchers_mut(target).ok_or(Errno::BADF)?.push(Watcher { set: id, item, descriptor });
        self.list(id, item);
        Ok(())
    }

    /// Changes the events of interest (EPOLL_CTL_MOD) and arms the item again.
    ///
    /// # Errors
    /// `ENOENT` if the set does not have the descriptor, `EINVAL` with EPOLLEXCLUSIVE before or now.
    pub fn epoll_modify(
        &mut self,
        id: EpollId,
        target: Target,
        descriptor: i32,
        interest: Interest,
    ) -> Result<(), Errno> {
        let watcher = self.watcher(id, target, descriptor).ok_or(Errno::NOENT)?;
        let item = &mut self.epolls[id.0 as usize].items[watcher.item as usize];
        if (item.interest.events | interest.events) & bits::EXCLUSIVE != 0 {
            return Err(Errno::INVAL);
        }
        item.interest = interest;
        self.list(id, watcher.item);
        Ok(())
    }

    /// Removes the descriptor from the set (EPOLL_CTL_DEL).
    ///
    /// # Errors
    /// `ENOENT` if the set does not have it.
    pub fn epoll_delete(&mut self, id: EpollId, target: Target, descriptor: i32) -> Result<(), Errno> {
        let watcher = self.watcher(id, target, descriptor).ok_or(Errno::NOENT)?;
        self.watchers_mut(target).ok_or(Errno::BADF)?.retain(|other| *other != watcher);
        self.remove_item(watcher);
        Ok(())
    }

    fn remove_item(&mut self, watcher: Watcher) {
        let Some(set) = self.epolls.get_mut(watcher.set.0 as usize) else { return };
        let item = set.items.remove(watcher.item as usize);
        if item.is_listed {
            set.listed.retain(|listed| *listed != watcher.item);
        }
    }

    /// Removes `target` from all sets, or the items of `descriptor` only.
    pub fn unwatch(&mut self, target: Target, descriptor: Option<i32>) {
        let Some(watchers) = self.watchers_mut(target) else { return };
        let is_of = |watcher: &Watcher| descriptor.is_none_or(|descriptor| watcher.descriptor == descriptor);
        let ended: Vec<_> = watchers.extract_if(.., |watcher| is_of(watcher)).collect();
        ended.into_iter().for_each(|watcher| self.remove_item(watcher));
    }

    /// Lists the items of `socket` in their sets: its readiness may have changed.
    pub(crate) fn wake(&mut self, socket: SocketId) {
        self.changes += 1;
        let watchers = self.sockets.get(socket.0 as usize).map_or(&[][..], |socket| &socket.watchers);
        let mut outer = Vec::new();
        for watcher in watchers {
            if let Some(set) = self.epolls.get_mut(watcher.set.0 as usize) {
                set.list(watcher.item);
                outer.extend_from_slice(&set.watchers);
            }
        }
        outer.into_iter().for_each(|watcher| self.list(watcher.set, watcher.item));
    }

    /// Lists an item of a set, and the set in those that contain it.
    fn list(&mut self, id: EpollId, item: u32) {
        let Some(set) = self.epolls.get_mut(id.0 as usize) else { return };
        set.list(item);
        if !set.watchers.is_empty() {
            let outer = set.watchers.clone();
            outer.into_iter().for_each(|watcher| self.list(watcher.set, watcher.item));
        }
    }

    /// Returns the conditions of an item's object that hold.
    fn conditions(&self, net: &mut impl Transport, target: Target) -> u32 {
        match target {
            Target::Socket(id) => self.readiness(net, id),
            Target::Set(id) => self.epoll_readiness(net, id),
        }
    }

    /// Returns the conditions of poll(2) that hold for a set: it is readable while it has events.
    pub fn epoll_readiness(&self, net: &mut impl Transport, id: EpollId) -> u32 {
        let Some(set) = self.epolls.get(id.0 as usize) else { return 0 };
        let has_events = set.listed.iter().any(|at| {
            let Item { target, interest: Interest { events: wanted, .. }, .. } = set.items[*at as usize];
            let is_disarmed = wanted & !bits::MODES == 0 && wanted & bits::ONESHOT != 0;
            !is_disarmed && self.conditions(net, target) & (wanted | bits::ALWAYS) != 0
        });
        if has_events { bits::IN | bits::RDNORM } else { 0 }
    }

    /// Calls `report` with the position and the value of each event of the set, up to `most`. Returns their number.
    pub fn epoll_collect(
        &mut self,
        net: &mut impl Transport,
        id: EpollId,
        most: usize,
        mut report: impl FnMut(usize, Ready),
    ) -> usize {
        let (mut left, mut reported) = (self.epolls.get(id.0 as usize).map_or(0, |set| set.listed.len()), 0);
        while left > 0 && reported < most {
            left -= 1;
            let set = &mut self.epolls[id.0 as usize];
            let Some(at) = set.listed.pop_front() else { break };
            let Item { target, interest, is_listed } = &mut set.items[at as usize];
            *is_listed = false;
            let (target, Interest { events: wanted, data }) = (*target, *interest);
            // An item that a one-shot event has disarmed has no conditions, not even those that are always reported.
            if wanted & !bits::MODES == 0 && wanted & bits::ONESHOT != 0 {
                continue;
            }
            let ready = self.conditions(net, target) & (wanted | bits::ALWAYS);
            if ready == 0 {
                continue;
            }
            report(reported, Ready { events: ready, data });
            reported += 1;
            let set = &mut self.epolls[id.0 as usize];
            if wanted & bits::ONESHOT != 0 {
                set.items[at as usize].interest.events &= bits::MODES;
            } else if wanted & bits::EDGE == 0 {
                set.list(at);
            }
        }
        reported
    }
}
