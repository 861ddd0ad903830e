//! The unpublished changes of a file, laid over its published content: a map from ranges to the places of
//! their bytes.
//!
//! Invariants: pieces are not empty and do not overlap; neighbours that continue each other are one piece. So
//! memory grows with the number of separate changes, not with the number of bytes.

use std::collections::BTreeMap;
use std::ops::Range;

/// Where the bytes of a changed range are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece<S> {
    /// In the spool, at the same offset.
    Spool,
    /// A hole, which reads as zeroes.
    Hole,
    /// In another file's content, from this offset on.
    Copy(S, u64),
}

impl<S: Clone> Piece<S> {
    /// The piece without its first `by` bytes.
    fn advanced(&self, by: u64) -> Piece<S> {
        match self {
            Piece::Spool => Piece::Spool,
            Piece::Hole => Piece::Hole,
            Piece::Copy(source, offset) => Piece::Copy(source.clone(), offset + by),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Span<S> {
    end: u64,
    piece: Piece<S>,
}

/// Changed ranges of one file. `S` identifies another file's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlay<S> {
    spans: BTreeMap<u64, Span<S>>,
}

impl<S> Default for Overlay<S> {
    fn default() -> Self {
        Overlay { spans: BTreeMap::new() }
    }
}

impl<S: Clone + PartialEq> Overlay<S> {
    /// Number of separate pieces.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The offset after the last piece.
    pub fn end(&self) -> u64 {
        self.spans.last_key_value().map_or(0, |(_, span)| span.end)
    }

    /// Whether some bytes are in the spool.
    pub fn uses_spool(&self) -> bool {
        self.spans.values().any(|span| span.piece == Piece::Spool)
    }

    /// Lays `piece` over `range`, replacing earlier pieces there.
    pub fn insert(&mut self, range: Range<u64>, piece: Piece<S>) {
        if range.is_empty() {
            return;
        }
        self.clear(range.clone());
        let Range { mut start, mut end } = range;
        let mut piece = piece;
        if let Some((&before, span)) = self.spans.range(..start).next_back()
            && span.end == start
            && span.piece.advanced(span.end - before) == piece
        {
            piece = span.piece.clone();
            start = before;
        }
        if let Some(span) = self.spans.get(&end)
            && piece.advanced(end - start) == span.piece
        {
            let after = end;
            end = span.end;
            self.spans.remove(&after);
        }
        self.spans.insert(start, Span { end, piece });
    }

    /// Removes changes within `range`.
    pub fn clear(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.spans.range(..range.start).next_back().map(|(&start, _)| start);
        let from = first.filter(|start| self.spans[start].end > range.start).unwrap_or(range.start);
        let touched: Vec<u64> = self.spans.range(from..range.end).map(|(&start, _)| start).collect();
        for start in touched {
            let span = self.spans.remove(&start).expect("it was there just now");
            if span.end > range.end {
                let rest = Span { end: span.end, piece: span.piece.advanced(range.end - start) };
                self.spans.insert(range.end, rest);
            }
            if start < range.start {
                self.spans.insert(start, Span { end: range.start, piece: span.piece });
            }
        }
    }

    /// Removes changes at and after `size`.
    pub fn cut(&mut self, size: u64) {
        self.clear(size..u64::MAX);
    }

    /// Whether all of `range` is one run of spooled bytes.
    pub fn is_spooled(&self, range: &Range<u64>) -> bool {
        let span = self.spans.range(..=range.start).next_back();
        span.is_some_and(|(_, span)| span.piece == Piece::Spool && span.end >= range.end)
    }

    /// All of `range` in order, split where pieces begin and end; `None` where nothing is changed.
    pub fn slices(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<Piece<S>>)> {
        let mut slices = Vec::new();
        let mut at = range.start;
        let first = self.spans.range(..range.start).next_back().filter(|(_, span)| span.end > range.start);
        for (&start, span) in first.into_iter().chain(self.spans.range(range.clone())) {
            if start > at {
                slices.push((at..start, None));
            }
            let begin = start.max(at);
            let end = span.end.min(range.end);
            slices.push((begin..end, Some(span.piece.advanced(begin - start))));
            at = end;
        }
        if at < range.end {
            slices.push((at..range.end, None));
        }
        slices
    }

    /// All pieces in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &Piece<S>)> {
        self.spans.iter().map(|(&start, span)| (start..span.end, &span.piece))
    }

    /// Lays all of `newer` over this overlay.
    pub fn lay(&mut self, newer: &Overlay<S>) {
        for (range, piece) in newer.iter() {
            self.insert(range, piece.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64, u8),
        Clear(u64, u64),
        Cut(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let range = (0..BYTES, 0..BYTES).prop_map(|(a, b)| (a.min(b), a.max(b)));
        let step = prop_oneof![
            4 => (range.clone(), 0u8..4).prop_map(|((start, end), kind)| Step::Insert(start, end, kind)),
            1 => range.prop_map(|(start, end)| Step::Clear(start, end)),
            1 => (0..BYTES).prop_map(Step::Cut),
        ];
        prop::collection::vec(step, 0..40)
    }

    proptest! {
        /// Proves: an overlay answers like an array that remembers for each byte what was laid there last,
        /// and has no more pieces than that array has runs.
        #[test]
        fn answers_like_an_array(steps in steps()) {
            let mut overlay: Overlay<u8> = Overlay::default();
            let mut array: Vec<Option<Piece<u8>>> = vec![None; BYTES as usize];
            for step in steps {
                match step {
                    Step::Insert(start, end, kind) => {
                        let piece = match kind {
                            0 => Piece::Spool,
                            1 => Piece::Hole,
                            source => Piece::Copy(source, 100),
                        };
                        for at in start..end {
                            array[at as usize] = Some(piece.advanced(at - start));
                        }
                        overlay.insert(start..end, piece);
                    }
                    Step::Clear(start, end) => {
                        array[start as usize..end as usize].fill(None);
                        overlay.clear(start..end);
                    }
                    Step::Cut(size) => {
                        array[size as usize..].fill(None);
                        overlay.cut(size);
                    }
                }
                let mut seen = Vec::new();
                for (range, piece) in overlay.slices(0..BYTES) {
                    for at in range.clone() {
                        seen.push(piece.as_ref().map(|piece| piece.advanced(at - range.start)));
                    }
                }
                prop_assert_eq!(&seen, &array);
                let runs = (0..array.len())
                    .filter(|&at| {
                        array[at].as_ref().is_some_and(|piece| {
                            at == 0 || array[at - 1].as_ref().map(|before| before.advanced(1)).as_ref() != Some(piece)
                        })
                    })
                    .count();
                prop_assert_eq!(overlay.len(), runs);
                let part: Vec<_> = overlay.slices(10..20).into_iter().collect();
                prop_assert_eq!(part.first().map(|(range, _)| range.start), Some(10));
                prop_assert_eq!(part.last().map(|(range, _)| range.end), Some(20));
            }
        }
    }
}
