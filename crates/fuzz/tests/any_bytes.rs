//! Bytes of no grammar, and of nearly each: whatever decodes bytes of somebody who is not trusted.

use holdfast_fuzz::mutate::{Random, mutated};
use holdfast_fuzz::{grammars, target, targets};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Remembers the largest piece of memory that this thread asked for.
struct Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is the system's allocator's; noting a number in a thread's own cell, which is made without memory,
// touches nothing of it.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: as required of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as required of the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static MEMORY: Watched = Watched;

/// Most bytes at once for reading what has 64 KiB at most.
const PIECE_MAX: usize = 1 << 20;
const ROUNDS: usize = 4000;

/// Proves: what fuzzing begins with is meant as it is.
#[test]
fn samples_are_values() {
    let wrong = |target: &&holdfast_fuzz::Target| {
        let samples = (target.samples)();
        samples.is_empty() || !samples.iter().all(|sample| (target.run)(sample))
    };
    let wrong: Vec<&str> = targets().filter(wrong).map(|target| target.name).collect();
    assert!(wrong.is_empty(), "samples of {wrong:?} are no values");
}

/// Proves: of each channel's grammar there is a message of each kind to begin with, so that no kind is left out that was
/// added later.
#[test]
fn every_kind_of_message() {
    for grammar in grammars() {
        let samples = (target(grammar.target).expect("a target").samples)();
        let missing: Vec<u8> = (0..=u8::MAX)
            .filter(|first| (grammar.has)(*first) && !samples.iter().any(|sample| sample[0] == *first))
            .collect();
        assert!(missing.is_empty(), "{}: no sample of the kinds {missing:?}", grammar.target);
    }
}

/// Proves: whatever is made of each target's samples, and of what its corpus has, is a value or refused: without a panic,
/// with one encoding, and in bounded memory.
#[test]
fn any_bytes() {
    for target in targets() {
        let samples = target.kept();
        let mut random = Random(0x1234_5678_9abc_def1);
        let (mut values, mut refused) = (0, 0);
        LARGEST.set(0);
        for round in 0..ROUNDS + samples.len() {
            let bytes =
                if round < samples.len() { samples[round].clone() } else { mutated(&samples, &mut random) };
            match (target.run)(&bytes) {
                true => values += 1,
                false => refused += 1,
            }
        }
        assert!(LARGEST.get() <= PIECE_MAX, "{} took {} bytes at once", target.name, LARGEST.get());
        // Any bytes may be what an author wrote into a block.
        assert!(
            values > 0 && (refused > 0 || target.name == "block"),
            "{}: {values} values, {refused} refused",
            target.name
        );
    }
}

/// Proves: each byte of a stored policy table that is changed is noticed, or means nothing: a table that opens says what
/// it said.
#[test]
fn each_byte_of_a_table() {
    let target = target("policy-table").expect("a target");
    let table = (target.samples)().remove(0);
    assert!((target.run)(&table));
    for at in 0..table.len() {
        let mut changed = table.clone();
        changed[at] ^= 1 << (at % 8);
        if (target.run)(&changed) {
            // Not in use: no number of a block or label, no owner, no length.
            assert_eq!(table[at], 0, "byte {at} changed unnoticed");
        }
    }
}

/// What fuzzing writes down and reads again.
#[test]
fn mutation_is_repeatable() {
    let samples = (target("ask-policy").expect("a target").samples)();
    let run = || {
        let mut random = Random(5);
        (0..100).map(|_| mutated(&samples, &mut random)).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}
