//! Malformed and nearly well-formed bytes for everything that decodes bytes from somebody who is not trusted.

use holdfast_fuzz::mutate::{Random, mutated};
use holdfast_fuzz::{grammars, target, targets};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// An allocator that notes the largest piece of memory that this thread asked for.
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

/// The most bytes that reading an input of at most 64 KiB may ask for at once.
const PIECE_MAX: usize = 1 << 20;
const ROUNDS: usize = 4000;

/// Proves: each target accepts its own samples.
#[test]
fn samples_are_values() {
    let wrong = |target: &&holdfast_fuzz::Target| {
        let samples = (target.samples)();
        samples.is_empty() || !samples.iter().all(|sample| (target.run)(sample))
    };
    let wrong: Vec<&str> = targets().filter(wrong).map(|target| target.name).collect();
    assert!(wrong.is_empty(), "samples of {wrong:?} are no values");
}

/// Proves: there is a sample of each kind of each channel's grammar, so that no kind that was added later is left out.
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

/// Proves: any change of a target's samples and corpus gives a value or is refused: without a panic, with one encoding,
/// and in bounded memory.
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
        // An author can write any bytes into a block.
        assert!(
            values > 0 && (refused > 0 || target.name == "block"),
            "{}: {values} values, {refused} refused",
            target.name
        );
    }
}

/// Proves: each changed byte of a stored policy table is noticed, or has no meaning: a table that opens says what it
/// said.
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

/// The corpora, which fuzzing writes and reads again.
#[test]
fn mutation_is_repeatable() {
    let samples = (target("ask-policy").expect("a target").samples)();
    let run = || {
        let mut random = Random(5);
        (0..100).map(|_| mutated(&samples, &mut random)).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}
