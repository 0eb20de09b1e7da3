//! Conversions from and to `bytes::Bytes` without a copy (feature `bytes`).

use super::{Bytes, Memory, OwnerVtable};
use std::ptr::NonNull;
use std::sync::Arc;

static SHARED: OwnerVtable = OwnerVtable {
    memory: Memory::Process,
    pooled: false,
    // SAFETY: the owner came from `Arc::into_raw`, and the caller holds a reference to it.
    share: |owner| unsafe { Arc::increment_strong_count(owner.cast::<::bytes::Bytes>()) },
    // SAFETY: the owner came from `Arc::into_raw`, and the caller gives up a reference to it.
    release: |owner| unsafe { Arc::decrement_strong_count(owner.cast::<::bytes::Bytes>()) },
};

impl From<::bytes::Bytes> for Bytes {
    fn from(bytes: ::bytes::Bytes) -> Self {
        let owner = Arc::new(bytes);
        let (start, len) = (NonNull::from(&owner[..]).cast(), owner.len());
        // SAFETY: the bytes live and are not written while a reference to the `Arc` exists.
        unsafe { Bytes::from_owner(start, len, Arc::into_raw(owner).cast(), &SHARED) }
    }
}

impl From<Bytes> for ::bytes::Bytes {
    fn from(bytes: Bytes) -> Self {
        ::bytes::Bytes::from_owner(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_copy_nothing_and_release_their_owner() {
        let vec = Arc::new(b"abcdef".to_vec());
        struct Owner(Arc<Vec<u8>>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let converted = Bytes::from(::bytes::Bytes::from_owner(Owner(vec.clone())));
        assert_eq!((&converted[..], converted.as_ptr()), (&b"abcdef"[..], vec.as_ptr()));
        let part = ::bytes::Bytes::from(converted.slice(2..4));
        assert_eq!((&part[..], part.as_ptr()), (&b"cd"[..], vec[2..].as_ptr()));
        drop(converted);
        assert_eq!(Arc::strong_count(&vec), 2);
        drop(part);
        assert_eq!(Arc::strong_count(&vec), 1);
    }
}
