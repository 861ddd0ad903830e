//! Interned parts of states, each stored once and named by a number.

use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

/// Keeps each value once. Equal keys name the same value.
pub struct Interner<K, V> {
    numbers: HashMap<K, u32>,
    values: Vec<Rc<V>>,
}

impl<K: Hash + Eq, V> Default for Interner<K, V> {
    fn default() -> Self {
        Interner { numbers: HashMap::new(), values: Vec::new() }
    }
}

impl<K: Hash + Eq, V> Interner<K, V> {
    /// The number of the value with this key; `make` makes it if it is new.
    pub fn add(&mut self, key: K, make: impl FnOnce() -> V) -> u32 {
        let next = u32::try_from(self.values.len()).expect("fewer parts than that");
        *self.numbers.entry(key).or_insert_with(|| {
            self.values.push(Rc::new(make()));
            next
        })
    }

    /// The value.
    pub fn get(&self, number: u32) -> Rc<V> {
        self.values[number as usize].clone()
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}
