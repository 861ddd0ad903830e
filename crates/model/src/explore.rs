//! The explorer: visits every state that a model can reach, breadth first, and reports which promise breaks
//! on the shortest path.
//!
//! Invariants: a state is a list of numbers that name interned parts, so two states compare equal exactly if
//! they are the same (there are no fingerprints, so no state is skipped because of a collision). The order of
//! exploration follows the model's steps, so two runs count the same.
//!
//! Why not `stateright`: it has *always*, *sometimes*, and an *eventually* that is unsound where paths join
//! or cycle, but not "from every state an honest client can make progress", which is needed here. It makes
//! every successor twice (once to name the action, once to take it); here a successor costs signatures, and a
//! table of steps of single machines makes each only once. After that, little more than this file remains of
//! a checker.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Something that happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// Who acts: a client's place in the configuration, or [`Action::SERVER`].
    pub actor: u8,
    /// Whether it is part of that client's going on, and not of a misfortune.
    pub helps: bool,
    /// Whether with it an operation of that client is committed.
    pub commits: bool,
    /// The action's number, for [`Model::describe`].
    pub what: u32,
}

impl Action {
    /// The server's own doing.
    pub const SERVER: u8 = u8::MAX;
}

/// An action, and the state it leads to.
pub struct Step {
    /// The action.
    pub action: Action,
    /// The state after it.
    pub to: Vec<u32>,
}

/// A promise that an action breaks.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The action.
    pub action: Action,
    /// The broken promise, in words.
    pub what: String,
}

/// A configuration to explore.
pub trait Model {
    /// The state in which everything begins.
    fn initial(&mut self) -> Vec<u32>;

    /// All actions that are possible in a state.
    ///
    /// # Errors
    /// [`Violation`]: one of these actions breaks a promise.
    fn steps(&mut self, state: &[u32], out: &mut Vec<Step>) -> Result<(), Violation>;

    /// An action in words.
    fn describe(&self, action: Action) -> String;

    /// The clients that must be able to commit an operation from `state` on, all by themselves.
    fn obliged(&mut self, _state: &[u32]) -> Vec<u8> {
        Vec::new()
    }

    /// Number of different states of single machines.
    fn machines(&self) -> usize;
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most states.
    pub states: usize,
    /// Most steps from the beginning.
    pub depth: u32,
    /// Longest time.
    pub time: Duration,
}

impl Limits {
    /// Explores everything.
    pub const NONE: Limits =
        Limits { states: u32::MAX as usize, depth: u32::MAX, time: Duration::from_secs(u64::MAX / 4) };
}

/// The result of exploring a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Everything was explored, and every promise holds.
    Holds,
    /// No promise was broken before the limit was reached.
    Incomplete,
    /// A promise is broken; the shortest way there, in words.
    Broken {
        /// The broken promise, in words.
        what: String,
        /// The actions that lead to it, in order.
        trace: Vec<String>,
    },
}

/// Statistics of an exploration.
#[derive(Clone, Debug)]
pub struct Report {
    /// States.
    pub states: usize,
    /// Steps between them.
    pub steps: u64,
    /// Longest of the shortest ways to a state.
    pub depth: u32,
    /// States of single machines.
    pub machines: usize,
    /// The time it took.
    pub time: Duration,
    /// The verdict.
    pub verdict: Verdict,
}

impl Report {
    /// The trace as text; empty if nothing is broken.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        if let Verdict::Broken { what, trace } = &self.verdict {
            for (number, step) in trace.iter().enumerate() {
                let _ = writeln!(text, "{:3}. {step}", number + 1);
            }
            let _ = writeln!(text, "     {what}");
        }
        text
    }
}

struct Node {
    state: Rc<[u32]>,
    parent: u32,
    depth: u32,
}

/// Explores `model`; with `progress`, also checks that everybody who must be able to make progress alone can
/// do so.
pub fn explore(model: &mut dyn Model, limits: Limits, progress: bool) -> Report {
    Exploration { nodes: Vec::new(), known: HashMap::new(), edges: Vec::new(), steps: 0 }
        .run(model, limits, progress)
}

struct Exploration {
    nodes: Vec<Node>,
    known: HashMap<Rc<[u32]>, u32>,
    /// From, to, the acting client, and whether it makes progress; only stored for `progress`.
    edges: Vec<(u32, u32, u8, bool)>,
    steps: u64,
}

impl Exploration {
    fn run(mut self, model: &mut dyn Model, limits: Limits, progress: bool) -> Report {
        let begun = Instant::now();
        let first = model.initial();
        self.add(first, u32::MAX, 0);
        let mut queue = VecDeque::from([0u32]);
        let (mut depth, mut stopped) = (0, false);
        let mut out = Vec::new();
        let mut verdict = None;
        while let Some(at) = queue.pop_front() {
            let node = &self.nodes[at as usize];
            let (state, here) = (node.state.clone(), node.depth);
            if here >= limits.depth || self.nodes.len() >= limits.states || begun.elapsed() > limits.time {
                stopped = true;
                continue;
            }
            out.clear();
            if let Err(violation) = model.steps(&state, &mut out) {
                let mut trace = self.trace(model, at);
                trace.push(model.describe(violation.action));
                verdict = Some(Verdict::Broken { what: violation.what, trace });
                break;
            }
            for step in out.drain(..) {
                self.steps += 1;
                let Action { actor, helps, commits, .. } = step.action;
                let (to, new) = self.add(step.to, at, here + 1);
                if new {
                    depth = here + 1;
                    queue.push_back(to);
                }
                if progress && (helps || actor == Action::SERVER) {
                    self.edges.push((at, to, actor, commits));
                }
            }
        }
        if verdict.is_none() && progress && !stopped {
            verdict = self.stuck(model);
        }
        Report {
            states: self.nodes.len(),
            steps: self.steps,
            depth,
            machines: model.machines(),
            time: begun.elapsed(),
            verdict: verdict.unwrap_or(if stopped { Verdict::Incomplete } else { Verdict::Holds }),
        }
    }

    fn add(&mut self, state: Vec<u32>, parent: u32, depth: u32) -> (u32, bool) {
        let next = u32::try_from(self.nodes.len()).expect("fewer states than that");
        if let Some(known) = self.known.get(&state[..]) {
            return (*known, false);
        }
        let state: Rc<[u32]> = state.into();
        self.known.insert(state.clone(), next);
        self.nodes.push(Node { state, parent, depth });
        (next, true)
    }

    /// The way to a state, in words: the steps are made once more to learn what they were.
    fn trace(&self, model: &mut dyn Model, mut at: u32) -> Vec<String> {
        let mut words = Vec::new();
        while self.nodes[at as usize].parent != u32::MAX {
            let (child, parent) =
                (&self.nodes[at as usize], &self.nodes[self.nodes[at as usize].parent as usize]);
            let mut out = Vec::new();
            let _ = model.steps(&parent.state, &mut out);
            let step = out.into_iter().find(|step| step.to[..] == child.state[..]);
            words.push(step.map_or_else(|| "?".to_owned(), |step| model.describe(step.action)));
            at = child.parent;
        }
        words.reverse();
        words
    }

    /// A state from which a client that must be able to cannot commit anything, whatever it and the server
    /// do.
    fn stuck(&self, model: &mut dyn Model) -> Option<Verdict> {
        let mut actors: Vec<u8> = self.edges.iter().map(|edge| edge.2).collect();
        actors.sort_unstable();
        actors.dedup();
        let mut obliged: HashMap<u8, Vec<u32>> = HashMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            for client in model.obliged(&node.state) {
                obliged.entry(client).or_default().push(at as u32);
            }
        }
        for client in actors.into_iter().filter(|actor| *actor != Action::SERVER) {
            let mine = |edge: &&(u32, u32, u8, bool)| edge.2 == client || edge.2 == Action::SERVER;
            let mut before: HashMap<u32, Vec<u32>> = HashMap::new();
            let mut goes_on = vec![false; self.nodes.len()];
            let mut open = Vec::new();
            for (from, to, actor, commits) in self.edges.iter().filter(mine) {
                before.entry(*to).or_default().push(*from);
                if *commits && *actor == client && !std::mem::replace(&mut goes_on[*from as usize], true) {
                    open.push(*from);
                }
            }
            while let Some(at) = open.pop() {
                for from in before.get(&at).into_iter().flatten() {
                    if !std::mem::replace(&mut goes_on[*from as usize], true) {
                        open.push(*from);
                    }
                }
            }
            let stuck = obliged.get(&client).into_iter().flatten().find(|at| !goes_on[**at as usize]);
            if let Some(stuck) = stuck {
                let trace = self.trace(model, *stuck);
                let what = format!("client {client} can never commit anything from here on");
                return Some(Verdict::Broken { what, trace });
            }
        }
        None
    }
}
