//! What the rules of acceptance other than the exact one keep on the device, and their launches. They stand before the walk and change what
//! rows choose; the walk itself is the same for every rule, and the exact rule launches nothing here.

use super::device::Gpu;
use super::kernels::Kernel;
use super::layout::RuleShape;
use super::plan::{Builder, Grid, Launch};
use crate::backend::MAX_ROWS;
use crate::error::Result;
use crate::speculate::accept::AcceptRule;

/// Bytes of `Judgement` in shaders/lib/judgement.wgsl.
const JUDGEMENT_BYTES: usize = 8;

/// Buffers that only rules use.
#[derive(Debug)]
pub struct RuleBuffers {
    /// `Rule` of shaders/judge.wgsl.
    shape: wgpu::Buffer,
    /// `[nodes]`.
    judgements: wgpu::Buffer,
}

impl RuleBuffers {
    /// Allocates; call it under [`Gpu::scoped`].
    pub fn new(gpu: &Gpu) -> Self {
        Self {
            shape: gpu.uniform("rule", &RuleShape::new(AcceptRule::Exact)),
            judgements: gpu.storage("judgements", (MAX_ROWS * JUDGEMENT_BYTES) as u64),
        }
    }

    /// Writes what a generation needs before its first step.
    pub fn begin(&self, gpu: &Gpu, rule: AcceptRule) {
        gpu.queue.write_buffer(&self.shape, 0, bytemuck::bytes_of(&RuleShape::new(rule)));
    }
}

/// The launches of the rules.
#[derive(Debug)]
pub struct RuleLaunches {
    /// Those of the lossy rules.
    lenient: [Launch; 2],
    /// That of the rule of rejection.
    reject: [Launch; 1],
}

impl RuleLaunches {
    /// Bind groups over these buffers.
    ///
    /// # Errors
    /// `Internal`.
    pub fn new(builder: &Builder<'_>) -> Result<Self> {
        let (b, r, d) = (builder.buffers, &builder.buffers.rules, &builder.buffers.draft);
        let judge = [&b.sampling, &r.shape, &b.state, &b.logits, &b.thresholds, &r.judgements];
        let choose = [&b.sampling, &b.state, &r.judgements, &b.candidates];
        let reject =
            [&b.sampling, &d.shape, &b.state, &b.thresholds, &d.head_logits, &d.draft_ids, &b.logits, &b.candidates];
        Ok(Self {
            reject: [builder.launch(Kernel::Reject, None, &reject, Grid::Rows)?],
            lenient: [
                builder.launch(Kernel::Judge, None, &judge, Grid::Rows)?,
                builder.launch(Kernel::ChoosePath, None, &choose, Grid::One)?,
            ],
        })
    }

    /// What a step of `rows` rows launches between the choice of tokens and the walk.
    pub fn launches(&self, rule: AcceptRule, rows: usize) -> &[Launch] {
        match rule {
            AcceptRule::Typical { .. } | AcceptRule::TopK { .. } if rows > 1 => &self.lenient,
            // Also where no child is there to reject: its draws are not those of sample.wgsl.
            AcceptRule::Rejection => &self.reject,
            _ => &[],
        }
    }
}
