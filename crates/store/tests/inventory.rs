//! Listing what a store has, in pieces.

use crate::common;

use common::*;
use holdfast_log::Position;
use holdfast_log::simulated::PowerLoss;

/// Proves: pieces of any size, joined, are the whole list in order of position; dropped blocks are not in it.
#[test]
fn pieces_are_the_whole() {
    let disk = PowerLoss::new(1);
    let store = open(&disk).unwrap();
    let blocks: Vec<_> = (0..30).map(chunk).collect();
    for (at, block) in blocks.iter().enumerate() {
        store.store(FS, if at % 3 == 0 { BOB } else { ALICE }, vec![block.clone()], at as i64).unwrap();
    }
    store.decref(FS, ALICE, blocks[10].0, SECOND).unwrap();
    let whole = store.inventory(FS, Position::START, usize::MAX).unwrap();
    assert_eq!(whole.len(), 29);
    assert!(whole.is_sorted() && whole.iter().all(|one| one.address != blocks[10].0));
    for piece in [1, 2, 7, 28, 29, 30] {
        let (mut pieces, mut after) = (Vec::new(), Position::START);
        loop {
            let some = store.inventory(FS, after, piece).unwrap();
            assert!(some.len() <= piece);
            let Some(last) = some.last() else { break };
            after = last.position;
            pieces.extend(some);
        }
        assert_eq!(pieces, whole, "{piece} at once");
    }
}
