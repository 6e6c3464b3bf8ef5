//! The kernel of rejection on its own, with drafters that no model has.

use draftree::backend::gpu::device::Gpu;
use draftree::backend::gpu::kernels::{Kernel, Kernels, Tile, Variant};
use draftree::speculate::rejection::{Child, Drawing};
use pollster::block_on;

/// Offsets of arrays in `State` of shaders/lib/state.wgsl, in words, and its size.
const TOKENS: usize = 44;
const PARENTS: usize = TOKENS + 64;
const DEPTHS: usize = PARENTS + 64;
const SOURCES: usize = DEPTHS + 64 + 64 * 64;
const STATE_WORDS: usize = SOURCES + 4 * 64;
/// `Source` of draft heads and of n-grams.
const HEADS: u32 = 1;
const NGRAM: u32 = 2;

/// A row with its children, deciding about a place in the text.
pub struct RejectTrial {
    pub children: Vec<Child>,
    pub position: u32,
}

/// reject.wgsl, ready to run.
pub struct Rejections {
    gpu: Gpu,
    kernels: Kernels,
}

impl Rejections {
    pub fn new() -> Self {
        let gpu = block_on(Gpu::request()).expect("these tests run on a GPU");
        Self { kernels: Kernels::new(gpu.clone()), gpu }
    }

    /// What each trial decides. All rows have the logits `p` `[vocabulary]`, and their children were drawn by `q` `[draft id]`.
    pub fn run(
        &mut self,
        p: &[f32],
        q: &[f32],
        token_map: Option<&[u32]>,
        drawing: Drawing,
        seed: u64,
        trials: &[RejectTrial],
    ) -> Vec<u32> {
        let gpu = &self.gpu;
        let quads = p.len().div_ceil(4);
        let storage = |words: &[u32]| {
            let buffer = gpu.storage("test", words.len() as u64 * 4);
            gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
            buffer
        };
        let one = 1f32.to_bits();
        let sampling: [u32; 16] =
            [quads as u32, p.len() as u32, 1, 0, seed as u32, (seed >> 32) as u32, one, one, 0, one, 0, 0, 0, 0, 0, 0];
        let (drawing, chunks) = match drawing {
            Drawing::Independent => (1, 0),
            Drawing::WithoutReplacement => (2, 0),
            Drawing::Chunks(chunks) => (3, chunks as u32),
        };
        let mut drafting = [0u32; 52];
        (drafting[3], drafting[7], drafting[8], drafting[9], drafting[10]) = (1, 1, drawing, q.len() as u32, chunks);
        let mut draft_ids = vec![u32::MAX; quads * 4];
        for id in 0..q.len() {
            draft_ids[token_map.map_or(id, |map| map[id] as usize)] = id as u32;
        }
        let mut row: Vec<u32> = p.iter().map(|logit| logit.to_bits()).collect();
        row.resize(quads * 4, 1e3f32.to_bits()); // padding must not count
        let logits_of_rows = row.repeat(64);
        let state = storage(&[0; STATE_WORDS]);
        let logits = storage(&logits_of_rows);
        let candidates = storage(&[0; 2 * 64]);
        let q_bits: Vec<u32> = q.iter().map(|logit| logit.to_bits()).collect();
        let uniforms = (gpu.uniform("sampling", &sampling), gpu.uniform("drafting", &drafting));
        let buffers = [
            &uniforms.0,
            &uniforms.1,
            &state,
            &storage(&[0; 64]),
            &storage(&q_bits),
            &storage(&draft_ids),
            &logits,
            &candidates,
        ];
        let bound: Vec<_> = buffers.iter().map(|buffer| buffer.as_entire_buffer_binding()).collect();
        let group = self.kernels.bind(Kernel::Reject, None, &bound).expect("the kernel composes");
        let pipeline = self.kernels.pipeline(Variant::new(Kernel::Reject, None, Tile::Rows1)).expect("it compiles");

        let passes = passes_of(trials);
        let results = gpu.storage("results", passes.len() as u64 * 512);
        for (pass, trials) in passes.iter().enumerate() {
            gpu.queue.write_buffer(&state, 0, bytemuck::cast_slice(&state_of(trials)));
            gpu.queue.write_buffer(&logits, 0, bytemuck::cast_slice(&logits_of_rows));
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let mut compute = encoder.begin_compute_pass(&Default::default());
            compute.set_pipeline(&pipeline);
            compute.set_bind_group(0, &group, &[]);
            compute.dispatch_workgroups(trials.len() as u32, 1, 1);
            drop(compute);
            encoder.copy_buffer_to_buffer(&candidates, 0, &results, pass as u64 * 512, 512);
            gpu.queue.submit([encoder.finish()]);
        }
        let words = self.read(&results);
        let chosen = passes.iter().enumerate().flat_map(|(pass, trials)| {
            let words = &words;
            (0..trials.len()).map(move |row| words[pass * 128 + 2 * row + 1])
        });
        chosen.collect()
    }

    fn read(&self, source: &wgpu::Buffer) -> Vec<u32> {
        let staging = self.gpu.staging(source.size());
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(source, 0, &staging, 0, source.size());
        self.gpu.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |result| result.expect("the device works"));
        self.gpu.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device works");
        bytemuck::pod_collect_to_vec(&staging.get_mapped_range(..).expect("it was mapped"))
    }
}

/// Trials that a pass of 64 nodes has room for, in order.
fn passes_of(trials: &[RejectTrial]) -> Vec<&[RejectTrial]> {
    let mut passes = Vec::new();
    let mut rest = trials;
    while !rest.is_empty() {
        let mut nodes = 0;
        // Node 63 is never a child, so that it can be the parent of all rows.
        let fits = |trial: &&RejectTrial| {
            nodes += 1 + trial.children.len();
            nodes < 64
        };
        let (pass, behind) = rest.split_at(rest.iter().take_while(fits).count());
        passes.push(pass);
        rest = behind;
    }
    passes
}

/// `State` of a pass: the rows of the trials first, then their children.
fn state_of(trials: &[RejectTrial]) -> Vec<u32> {
    let mut state = vec![0; STATE_WORDS];
    (state[1], state[7]) = (64, 64);
    for row in 0..64 {
        state[PARENTS + row] = 63;
    }
    let mut node = trials.len();
    for (row, trial) in trials.iter().enumerate() {
        state[DEPTHS + row] = trial.position.wrapping_sub(1);
        for child in &trial.children {
            state[TOKENS + node] = child.token;
            state[PARENTS + node] = row as u32;
            state[SOURCES + node] = if child.drawn { HEADS } else { NGRAM };
            node += 1;
        }
    }
    state
}
