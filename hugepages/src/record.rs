//! Record of the pages that [`Host::reserve`] has reserved since boot, so that [`Amount::All`](crate::Amount::All)
//! releases no page that others reserved.

use crate::host::read_number;
use crate::{Error, Host, PageSize};
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

impl Host {
    fn record(&self, size: PageSize, node: Option<u32>) -> PathBuf {
        let node = node.map(|node| format!("-node{node}")).unwrap_or_default();
        self.run.join(format!("linerate/hugepages-{}kB{node}", size.kilobytes()))
    }

    /// Returns the number of pages that were reserved on `node`, or on no specific node, and not released.
    pub(crate) fn recorded(&self, size: PageSize, node: Option<u32>) -> Result<u64, Error> {
        match read_number(&self.record(size, node)) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(0),
            Err(Error::Io { path, source }) => Err(Error::write(&path, source)),
            recorded => recorded,
        }
    }

    /// Replaces the number of [`recorded`](Self::recorded) pages. Without a record, as in a container whose `/run` is
    /// read-only, the pages count as those of others.
    pub(crate) fn set_recorded(&self, size: PageSize, node: Option<u32>, pages: u64) {
        let path = self.record(size, node);
        if pages > 0
            && let Some(directory) = path.parent()
        {
            // The directory also holds sockets, which are private.
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        }
        let _ = if pages > 0 { fs::write(&path, pages.to_string()) } else { fs::remove_file(&path) };
    }
}
