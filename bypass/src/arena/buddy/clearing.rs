//! How a page is made of what many small pieces have left free.

use super::tree::UNIT;
use super::{PAGE, PAGE_ORDER, PAGES, Pieces};
use crate::Bytes;

impl Pieces {
    /// Takes what is free of a page away that has few pieces and is not kept. The labels of its pieces are put into
    /// `labels`. When they have been moved elsewhere and [collected](Self::collect), and what is free has been given
    /// back ([`end_clearing`](Self::end_clearing)), it is a page that can be kept.
    pub fn begin_clearing(&mut self, labels: &mut Vec<u32>) -> Option<Clearing> {
        /// Chunks that are looked at.
        const LOOKED_AT: usize = 16;
        self.end_clearing();
        let rows = &self.rows;
        let inner = self.inner.as_mut()?;
        let count = inner.chunks.len();
        let mut best: Option<(u8, usize, usize)> = None;
        for chunk in (0..count.min(LOOKED_AT)).map(|n| (inner.next_sparse + n) % count) {
            let Some(part) = inner.chunks[chunk].as_ref().filter(|part| part.details.is_some()) else { continue };
            for (page, used) in part.used.iter().enumerate() {
                // What is half full is not worth it.
                let is_sparse = (1..=PAGE as u64 / UNIT as u64 / 2).contains(&u64::from(*used));
                if is_sparse && rows[chunk].kept >> page & 1 == 0 && best.is_none_or(|(least, ..)| *used < least) {
                    best = Some((*used, chunk, page));
                }
            }
        }
        inner.next_sparse = if count == 0 { 0 } else { (inner.next_sparse + LOOKED_AT) % count };
        let (_, chunk, page) = best?;
        let part = inner.chunks[chunk].as_mut()?;
        let first = page * (PAGE / UNIT);
        let hidden = &mut inner.hidden;
        part.buddies.take_within(first, PAGE_ORDER, |unit, order| hidden.push((unit, order)));
        let mut unit = first;
        let details = part.details.as_ref()?;
        while unit < first + PAGE / UNIT {
            match hidden.iter().find(|(hidden, _)| *hidden == unit) {
                Some((_, order)) => unit += 1 << order,
                None => {
                    labels.push(details.labels[unit]);
                    unit += 1 << details.orders[unit];
                }
            }
        }
        inner.cleared = Some(chunk * PAGES + page);
        inner.note_room(chunk);
        // SAFETY: the page lies within its chunk.
        let start = unsafe { self.rows[chunk].start.add(page * PAGE) };
        Some(Clearing { start: start.addr().get() })
    }

    /// Gives back what is free of the page that was being [cleared](Self::begin_clearing).
    pub fn end_clearing(&mut self) {
        let inner = self.inner_mut();
        let Some(page) = inner.cleared.take() else { return };
        let chunk = page / PAGES;
        if let Some(part) = inner.chunks[chunk].as_mut() {
            inner.hidden.drain(..).for_each(|(unit, order)| _ = part.buddies.give(unit, order));
            inner.note_room(chunk);
        }
        self.release_if_free(chunk);
    }
}

/// A page that is being cleared.
#[derive(Debug)]
pub struct Clearing {
    start: usize,
}

impl Clearing {
    /// Whether `bytes` begin in it.
    pub fn contains(&self, bytes: &Bytes) -> bool {
        (self.start..self.start + PAGE).contains(&bytes.as_ptr().addr())
    }
}
