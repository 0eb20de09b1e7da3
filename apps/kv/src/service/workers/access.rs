//! Options that give access to the data without a password.

/// Option of `kv serve` that gives access without a password, and therefore cannot be combined with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PasswordConflict {
    #[error("--udp: a datagram carries no password, and its source address can be forged")]
    Udp,
    #[error("--export: an RDMA READ carries no password, and a remote key of 32 bits can be guessed")]
    Export,
    #[error("--counters: an RDMA atomic operation carries no password, and a remote key of 32 bits can be guessed")]
    Counters,
}

impl PasswordConflict {
    /// Returns the first option in use that cannot be combined with a password.
    pub fn find(udp: bool, export: bool, counters: bool) -> Option<Self> {
        let options = [(udp, Self::Udp), (export, Self::Export), (counters, Self::Counters)];
        options.into_iter().find_map(|(is_used, conflict)| is_used.then_some(conflict))
    }
}
