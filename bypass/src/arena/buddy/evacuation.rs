//! Evacuation of sparse pages, which turns scattered free blocks into a whole free page.

use super::tree::UNIT;
use super::{BuddyArena, PAGE, PAGE_ORDER, PAGES};
use linerate_service::Bytes;

impl BuddyArena {
    /// Starts to evacuate a sparse page: withholds its free blocks, and appends the labels of its used blocks to
    /// `labels`. After the caller has moved those blocks and [collected](Self::collect) them,
    /// [`end_evacuation`](Self::end_evacuation) frees the page.
    pub fn begin_evacuation(&mut self, labels: &mut Vec<u32>) -> Option<Evacuation> {
        const SEARCHED: usize = 16;
        self.end_evacuation();
        let pages = &self.pages;
        let inner = self.inner.as_mut()?;
        let count = inner.chunks.len();
        let mut best: Option<(u8, usize, usize)> = None;
        for chunk in (0..count.min(SEARCHED)).map(|n| (inner.next_sparse + n) % count) {
            let Some(part) = inner.chunks[chunk].as_ref().filter(|part| part.table.is_some()) else { continue };
            for (page, used) in part.used.iter().enumerate() {
                // A page that is more than half full is not worth the copies.
                let is_sparse = (1..=PAGE as u64 / UNIT as u64 / 2).contains(&u64::from(*used));
                if is_sparse && pages[chunk].allocated >> page & 1 == 0 && best.is_none_or(|(least, ..)| *used < least)
                {
                    best = Some((*used, chunk, page));
                }
            }
        }
        inner.next_sparse = if count == 0 { 0 } else { (inner.next_sparse + SEARCHED) % count };
        let (_, chunk, page) = best?;
        let part = inner.chunks[chunk].as_mut()?;
        let first = page * (PAGE / UNIT);
        let withheld = &mut inner.withheld;
        part.tree.alloc_within(first, PAGE_ORDER, |unit, order| withheld.push((unit, order)));
        let mut unit = first;
        let table = part.table.as_ref()?;
        while unit < first + PAGE / UNIT {
            match withheld.iter().find(|(withheld, _)| *withheld == unit) {
                Some((_, order)) => unit += 1 << order,
                None => {
                    labels.push(table.labels[unit]);
                    unit += 1 << table.orders[unit];
                }
            }
        }
        inner.evacuated = Some(chunk * PAGES + page);
        inner.update_free(chunk);
        // SAFETY: the page lies within its chunk.
        let start = unsafe { self.pages[chunk].start.add(page * PAGE) };
        Some(Evacuation { start: start.addr().get() })
    }

    /// Ends an [evacuation](Self::begin_evacuation): returns the withheld blocks.
    pub fn end_evacuation(&mut self) {
        let inner = self.inner_mut();
        let Some(page) = inner.evacuated.take() else { return };
        let chunk = page / PAGES;
        if let Some(part) = inner.chunks[chunk].as_mut() {
            inner.withheld.drain(..).for_each(|(unit, order)| _ = part.tree.free(unit, order));
            inner.update_free(chunk);
        }
        self.release_if_free(chunk);
    }
}

/// Page being evacuated.
#[derive(Debug)]
pub struct Evacuation {
    start: usize,
}

impl Evacuation {
    /// Returns whether `bytes` start in the page.
    pub fn contains(&self, bytes: &Bytes) -> bool {
        (self.start..self.start + PAGE).contains(&bytes.as_ptr().addr())
    }
}
