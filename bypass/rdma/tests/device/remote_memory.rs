//! READ, WRITE and memory windows.

use crate::rig::{Pair, Rig, SIGNALLED};
use linerate_rdma::provider::{Access, Handle, Operation, Provider, SendWr, WcOpcode, WcStatus};

fn statuses(rig: &Rig, count: usize) -> Vec<WcStatus> {
    rig.completions(count).into_iter().map(|completion| completion.status).collect()
}

#[test]
fn remote_memory_is_read_and_written() {
    let Some(rig) = Rig::open() else { return };
    let [one, other] = rig.qps();
    let rkey = rig.keys.remote;
    rig.fill(0..5000, 3);
    rig.send(one, 1, &[rig.sge(0..5000)], Operation::Write { address: rig.address(8192), rkey });
    let found = rig.completions(1);
    assert_eq!((found[0].status, found[0].opcode), (WcStatus::Success, WcOpcode::Write));
    assert_eq!(rig.bytes(8192..13193), [vec![3; 5000], vec![0]].concat());

    rig.fill(8192..13192, 4);
    rig.send(one, 2, &[rig.sge(0..5000)], Operation::Read { address: rig.address(8192), rkey });
    let found = rig.completions(1);
    assert_eq!((found[0].status, found[0].opcode), (WcStatus::Success, WcOpcode::Read));
    assert_eq!(rig.bytes(0..5001), [vec![4; 5000], vec![0]].concat());

    rig.receive(other, 10, 0..0);
    let write = Operation::WriteImmediate { address: rig.address(20000), rkey, immediate: 9 };
    rig.send(one, 3, &[rig.sge(0..10)], write);
    let found = rig.completions(2);
    assert!(found.iter().all(|completion| completion.status == WcStatus::Success), "{found:?}");
    assert_eq!((found[1].opcode, found[1].len, found[1].immediate), (WcOpcode::ReceiveWrite, 10, Some(9)));
    assert_eq!(rig.bytes(20000..20011), [vec![4; 10], vec![0]].concat());
}

#[test]
fn access_without_rights_is_denied() {
    let Some(rig) = Rig::open() else { return };
    let [one, _] = rig.qps();
    let read = Operation::Read { address: rig.address(0), rkey: rig.keys.remote ^ 0x0100_0000 };
    rig.send(one, 1, &[rig.sge(0..64)], read);
    rig.send(one, 2, &[rig.sge(0..64)], Operation::Send);
    assert_eq!(statuses(&rig, 2), [WcStatus::RemoteAccess, WcStatus::Flushed]);
}

/// Memory window with its sequence of keys.
struct Mw<'a> {
    rig: &'a Rig,
    handle: Handle,
    key: u32,
}

impl<'a> Mw<'a> {
    fn new(rig: &'a Rig) -> Option<Self> {
        if !rig.native.limits().unwrap().mw_type_2 {
            eprintln!("skipped: {} has no windows of type 2", rig.native.name());
            return None;
        }
        // SAFETY: the domain is live.
        let (handle, key) = unsafe { rig.native.alloc_mw(rig.pd) }.unwrap();
        Some(Mw { rig, handle, key })
    }

    /// Returns the bind of `len` bytes at `offset` with the next key.
    fn bind(&mut self, offset: usize, len: u64) -> Operation {
        self.key = self.key & !0xff | self.key.wrapping_add(1) & 0xff;
        Operation::Bind {
            mw: self.handle,
            rkey: self.key,
            mr: self.rig.mr(),
            address: self.rig.address(offset),
            len,
            access: Access { remote_read: true, remote_write: true, ..Access::default() },
        }
    }

    fn write(&self, qp: Pair, id: u64, offset: usize) {
        let operation = Operation::Write { address: self.rig.address(offset), rkey: self.key };
        self.rig.send(qp, id, &[self.rig.sge(0..64)], operation);
    }
}

impl Drop for Mw<'_> {
    fn drop(&mut self) {
        // SAFETY: the window is live and not used again.
        let result = unsafe { self.rig.native.dealloc_mw(self.handle) };
        assert!(result.is_ok() || std::thread::panicking(), "{result:?}");
    }
}

#[test]
fn window_is_open_until_invalidated() {
    let Some(rig) = Rig::open() else { return };
    let Some(mut mw) = Mw::new(&rig) else { return };
    let [one, other] = rig.qps();
    rig.fill(0..64, 5);
    // Bound, used, and invalidated by its owner, repeatedly.
    for round in 0..3 {
        rig.fill(8192..8256, 0);
        rig.send(other, 1, &[], mw.bind(8192, 64));
        let found = rig.completions(1);
        assert_eq!((round, found[0].status, found[0].opcode), (round, WcStatus::Success, WcOpcode::Bind));
        mw.write(one, 2, 8192);
        assert_eq!(statuses(&rig, 1), [WcStatus::Success]);
        assert_eq!(rig.bytes(8192..8256), [5; 64]);
        rig.send(other, 3, &[], Operation::InvalidateLocal(mw.key));
        let found = rig.completions(1);
        assert_eq!((found[0].status, found[0].opcode), (WcStatus::Success, WcOpcode::Invalidate));
    }
    mw.write(one, 4, 8192);
    assert_eq!(statuses(&rig, 1), [WcStatus::RemoteAccess]);
}

/// Each bind in the list must use the key that the previous one set.
#[test]
fn window_is_bound_twice_in_one_list() {
    let Some(rig) = Rig::open() else { return };
    let Some(mut mw) = Mw::new(&rig) else { return };
    let [one, other] = rig.qps();
    let operations = [mw.bind(8192, 64), Operation::InvalidateLocal(mw.key), mw.bind(12288, 64)];
    let request = |(id, operation)| SendWr { id: id as u64, sges: &[], operation, flags: SIGNALLED };
    let requests: Vec<_> = operations.into_iter().enumerate().map(request).collect();
    rig.post(other, &requests).unwrap();
    assert_eq!(statuses(&rig, 3), [WcStatus::Success; 3]);
    rig.fill(0..64, 6);
    mw.write(one, 2, 12288);
    assert_eq!(statuses(&rig, 1), [WcStatus::Success]);
    assert_eq!(rig.bytes(12288..12352), [6; 64]);
}

#[test]
fn window_ends_at_its_bound() {
    let Some(rig) = Rig::open() else { return };
    let Some(mut mw) = Mw::new(&rig) else { return };
    let [one, other] = rig.qps();
    rig.send(other, 1, &[], mw.bind(8192, 63));
    assert_eq!(statuses(&rig, 1), [WcStatus::Success]);
    mw.write(one, 2, 8192);
    let found = statuses(&rig, 1);
    if rig.native.emulated_by() == Some("rxe") && found == [WcStatus::Success] {
        eprintln!("rxe enforces the bounds of the region, not of the window (seen with Linux 6.1)");
        return;
    }
    assert_eq!(found, [WcStatus::RemoteAccess]);
    assert_eq!(rig.bytes(8192..8256), [0; 64]);
}

/// The adapter's method for devices that enforce only the bounds of the region.
#[test]
fn window_on_own_registration_ends_with_it() {
    let Some(rig) = Rig::open() else { return };
    let Some(mut mw) = Mw::new(&rig) else { return };
    let access = Access { bind: true, ..Access::default() };
    // SAFETY: the domain is live; the memory outlives the region.
    let registered = unsafe { rig.native.reg_mr(rig.pd, rig.address(8192) as *mut u8, 64, access) };
    let (alone, _) = registered.unwrap();
    let [one, other] = rig.qps();
    let Operation::Bind { mw: handle, rkey, address, len, .. } = mw.bind(8192, 64) else { unreachable!() };
    let access = Access { remote_read: true, ..Access::default() };
    rig.fill(8192..8260, 7);
    rig.send(other, 1, &[], Operation::Bind { mw: handle, rkey, mr: alone, address, len, access });
    assert_eq!(statuses(&rig, 1), [WcStatus::Success]);
    rig.send(one, 2, &[rig.sge(0..64)], Operation::Read { address, rkey });
    assert_eq!(statuses(&rig, 1), [WcStatus::Success]);
    assert_eq!(rig.bytes(0..64), [7; 64]);
    rig.send(one, 3, &[rig.sge(0..65)], Operation::Read { address, rkey });
    assert_eq!(statuses(&rig, 1), [WcStatus::RemoteAccess]);
    drop(mw);
    // SAFETY: nothing is bound to the region, and it is not used again.
    unsafe { rig.native.dereg_mr(alone) }.unwrap();
}

#[test]
fn window_is_open_to_its_own_qp_only() {
    let Some(rig) = Rig::open() else { return };
    let Some(mut mw) = Mw::new(&rig) else { return };
    let [_one, other] = rig.qps();
    let [stranger, _] = rig.qps();
    rig.send(other, 1, &[], mw.bind(8192, 64));
    assert_eq!(statuses(&rig, 1), [WcStatus::Success]);
    mw.write(stranger, 2, 8192);
    assert_eq!(statuses(&rig, 1), [WcStatus::RemoteAccess]);
    assert_eq!(rig.bytes(8192..8256), [0; 64]);
}
