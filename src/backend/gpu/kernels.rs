//! The kernels, their variants, and the pipelines made of them.
//!
//! A pipeline is compiled when it is first asked for, or ahead of time by [`Kernels::warm_up`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::device::Gpu;
use super::shader::{self, BindingKind};
use crate::error::Result;
use crate::model::packing::{PackedFormat, PackedLayout};
use crate::model::weights::Matrix;

/// Every kernel; file, entry point and timing label bear its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kernel {
    /// Token ids to the residual stream.
    Embed,
    /// Norm, query/key/value projection, rotation, cache write.
    Qkv,
    /// Softmax and weighted values within chunks of positions.
    AttentionChunks,
    /// Chunks joined.
    AttentionJoin,
    /// Projection added to the residual stream.
    Project,
    /// Norm before many outputs.
    Norm,
    /// Gate and up projection, SwiGLU.
    GateUp,
    /// Logits.
    LmHead,
    /// Penalties, bias, temperature.
    ProcessLogits,
    /// Edge of top-k, top-p, min-p.
    Threshold,
    /// Best token of every chunk.
    Sample,
    /// What recycling learns from a pass.
    Recycle,
    /// What the lossy rules say of drafted tokens.
    Judge,
    /// The path that they prefer.
    ChoosePath,
    /// Speculative sampling with rejection.
    Reject,
    /// The walk through the verified tree.
    Accept,
    /// What chunks of the visited rows add to log-probabilities.
    LogprobChunks,
    /// Log-probabilities of the emitted tokens and of the most probable ones.
    Logprobs,
    /// Visited rows moved into place.
    Commit,
    /// The next tree.
    Draft,
    /// Where the text stands, for draft heads.
    HeadStart,
    /// A residual block of a draft head.
    HeadBlock,
    /// Best draft id of every chunk.
    HeadChunks,
    /// Best draft ids of a row.
    HeadRank,
    /// The same below one token.
    HeadCorrect,
    /// The nodes that recurrent heads go on from.
    HeadExpand,
}

impl Kernel {
    /// Every kernel.
    pub const ALL: [Self; 26] = [
        Self::Embed,
        Self::Qkv,
        Self::AttentionChunks,
        Self::AttentionJoin,
        Self::Project,
        Self::Norm,
        Self::GateUp,
        Self::LmHead,
        Self::ProcessLogits,
        Self::Threshold,
        Self::Sample,
        Self::Recycle,
        Self::Judge,
        Self::ChoosePath,
        Self::Reject,
        Self::Accept,
        Self::LogprobChunks,
        Self::Logprobs,
        Self::Commit,
        Self::Draft,
        Self::HeadStart,
        Self::HeadBlock,
        Self::HeadChunks,
        Self::HeadRank,
        Self::HeadCorrect,
        Self::HeadExpand,
    ];

    /// Name of its entry point, and of its file without `.wgsl`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Qkv => "qkv",
            Self::AttentionChunks => "attention_chunks",
            Self::AttentionJoin => "attention_join",
            Self::Project => "project",
            Self::Norm => "norm",
            Self::GateUp => "gate_up",
            Self::LmHead => "lm_head",
            Self::ProcessLogits => "process_logits",
            Self::Threshold => "threshold",
            Self::Sample => "sample",
            Self::Recycle => "recycle",
            Self::Judge => "judge",
            Self::ChoosePath => "choose_path",
            Self::Reject => "reject",
            Self::Accept => "accept",
            Self::LogprobChunks => "logprob_chunks",
            Self::Logprobs => "logprobs",
            Self::Commit => "commit",
            Self::Draft => "draft",
            Self::HeadStart => "head_start",
            Self::HeadBlock => "head_block",
            Self::HeadChunks => "head_chunks",
            Self::HeadRank => "head_rank",
            Self::HeadCorrect => "head_correct",
            Self::HeadExpand => "head_expand",
        }
    }

    /// Whether it reads packed weights, and so comes in one variant a format.
    pub const fn reads_weights(self) -> bool {
        matches!(self, Self::Embed | Self::HeadCorrect) || self.is_matmul()
    }

    /// Whether it is a matrix product, and so comes in one variant a tile.
    pub const fn is_matmul(self) -> bool {
        matches!(self, Self::Qkv | Self::Project | Self::GateUp | Self::LmHead | Self::HeadBlock)
    }

    /// What of a specialisation the kernel has.
    const fn special(self, special: Special) -> Special {
        let Special { noisy, listed, committed, tree, mapped } = special;
        let none = Special { noisy: false, listed: false, committed: false, tree: false, mapped: false };
        match self {
            Self::Sample | Self::Recycle => Special { noisy, ..none },
            Self::HeadChunks => Special { noisy, mapped, ..none },
            Self::HeadRank => Special { mapped, ..none },
            Self::Draft => Special { noisy, listed, ..none },
            Self::AttentionChunks => Special { committed, tree, ..none },
            _ => none,
        }
    }
}

/// What a kernel may be specialised for. A software adapter runs all code of a kernel once at least, whichever way conditions go, so
/// what a launch has no use for is left out when the kernel is compiled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Special {
    /// Chance decides.
    pub noisy: bool,
    /// The tree has a fixed shape.
    pub listed: bool,
    /// Attention to committed chunks only, by many queries at once.
    pub committed: bool,
    /// Attention to all but them.
    pub tree: bool,
    /// The tokens of draft ids stand in a map.
    pub mapped: bool,
}

impl Special {
    /// The constants of the shaders, and their values.
    const fn constants(self) -> [(&'static str, bool); 5] {
        [
            ("NOISY", self.noisy),
            ("LISTED", self.listed),
            ("COMMITTED", self.committed),
            ("TREE", self.tree),
            ("MAPPED", self.mapped),
        ]
    }
}

/// The register tile of a matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tile {
    /// 1 row.
    Rows1,
    /// 2 rows.
    Rows2,
    /// 4 rows.
    Rows4,
    /// 8 rows; more rows are more tiles.
    Rows8,
}

impl Tile {
    /// Every tile.
    pub const ALL: [Self; 4] = [Self::Rows1, Self::Rows2, Self::Rows4, Self::Rows8];

    /// The tile that many rows use.
    pub const LARGEST: Self = Self::Rows8;

    /// The tile that prompts begin with: it compiles in half the time, and takes a third more time a row.
    pub const PROMPT: Self = Self::Rows4;

    /// The next smaller tile.
    pub const fn smaller(self) -> Option<Self> {
        match self {
            Self::Rows1 => None,
            Self::Rows2 => Some(Self::Rows1),
            Self::Rows4 => Some(Self::Rows2),
            Self::Rows8 => Some(Self::Rows4),
        }
    }

    /// The smallest tile that takes `rows` rows at once.
    pub const fn for_rows(rows: usize) -> Self {
        match rows {
            0 | 1 => Self::Rows1,
            2 => Self::Rows2,
            3 | 4 => Self::Rows4,
            _ => Self::Rows8,
        }
    }

    /// Rows a thread carries.
    pub const fn rows(self) -> usize {
        match self {
            Self::Rows1 => 1,
            Self::Rows2 => 2,
            Self::Rows4 => 4,
            Self::Rows8 => 8,
        }
    }

    const fn rows_file(self) -> &'static str {
        match self {
            Self::Rows1 => "lib/rows_1.wgsl",
            Self::Rows2 => "lib/rows_2.wgsl",
            Self::Rows4 => "lib/rows_4.wgsl",
            Self::Rows8 => "lib/rows_8.wgsl",
        }
    }
}

/// One compiled form of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variant {
    /// Which kernel.
    pub kernel: Kernel,
    /// Format of the weights, for kernels that read them.
    pub format: Option<PackedFormat>,
    /// Register tile, for matrix products.
    pub tile: Option<Tile>,
    /// What it is for.
    pub special: Special,
}

impl Variant {
    /// The variant of `kernel` for a matrix in `format`; kernels without tiles do not ask for it.
    pub fn new(kernel: Kernel, format: Option<PackedFormat>, tile: Tile) -> Self {
        Self { kernel, format, tile: kernel.is_matmul().then_some(tile), special: Special::default() }
    }

    /// The same for a special case, as far as the kernel knows of it.
    #[must_use]
    pub fn specialised(self, special: Special) -> Self {
        Self { special: self.kernel.special(special), ..self }
    }

    /// Every variant of every kernel.
    pub fn all() -> Vec<Self> {
        let mut variants = Vec::new();
        for kernel in Kernel::ALL {
            let formats: Vec<_> =
                if kernel.reads_weights() { PackedFormat::ALL.map(Some).to_vec() } else { vec![None] };
            for &format in &formats {
                variants.extend(Tile::ALL.map(|tile| Self::new(kernel, format, tile)));
            }
        }
        variants.dedup();
        variants
    }

    /// The variants that load a model's matrices, and all others that a short prompt and plain greedy decoding need.
    pub fn for_model(formats: &[(Matrix, PackedFormat)]) -> Vec<Self> {
        let tied = formats.iter().all(|&(matrix, _)| matrix != Matrix::LmHead);
        let both = [Tile::Rows1, Tile::PROMPT];
        let mut variants: Vec<Self> =
            [Kernel::AttentionChunks, Kernel::AttentionJoin, Kernel::Norm, Kernel::Sample, Kernel::Accept]
                .map(|kernel| Self::new(kernel, None, Tile::Rows1))
                .to_vec();
        variants.push(
            Self::new(Kernel::Sample, None, Tile::Rows1).specialised(Special { noisy: true, ..Special::default() }),
        );
        for &(matrix, format) in formats {
            let mut add = |kernel, tiles: &[Tile]| {
                variants.extend(tiles.iter().map(|&tile| Self::new(kernel, Some(format), tile)));
            };
            match matrix {
                Matrix::Embedding => {
                    add(Kernel::Embed, &both[..1]);
                    if tied {
                        add(Kernel::LmHead, &both[..1]);
                    }
                }
                Matrix::LmHead => add(Kernel::LmHead, &both[..1]),
                Matrix::Qkv(_) => add(Kernel::Qkv, &both),
                Matrix::AttentionOut(_) | Matrix::Down(_) => add(Kernel::Project, &both),
                Matrix::GateUp(_) => add(Kernel::GateUp, &both),
                Matrix::Heads(_) => unreachable!("no matrix of the model"),
            }
        }
        variants.sort_unstable();
        variants.dedup();
        variants
    }

    /// Its WGSL; with `quads` four invocations share the loads of a matrix product's inputs ([`DeviceCaps::shares_loads`]).
    ///
    /// # Errors
    /// `Internal` for an import that names no file.
    ///
    /// [`DeviceCaps::shares_loads`]: super::device::DeviceCaps::shares_loads
    pub fn source(self, quads: bool) -> Result<String> {
        let mut choices = Vec::new();
        if let Some(format) = self.format {
            choices.push(("weights", weights_file(format)));
            choices.push(("block", block_file(format)));
            choices.push(("order", if quads { "lib/order_quad.wgsl" } else { "lib/order_plain.wgsl" }));
        }
        if let Some(tile) = self.tile {
            choices
                .push(("rows", if quads && tile == Tile::Rows1 { "lib/rows_1_loop.wgsl" } else { tile.rows_file() }));
            choices.push(("lanes", if quads { "lib/lanes_quad.wgsl" } else { "lib/lanes_alone.wgsl" }));
            choices.push((
                "input",
                if self.kernel == Kernel::Qkv { "lib/input_normed.wgsl" } else { "lib/input_plain.wgsl" },
            ));
        }
        shader::compose(&format!("{}.wgsl", self.kernel.name()), &choices)
    }
}

const fn weights_file(format: PackedFormat) -> &'static str {
    match format {
        PackedFormat::F32 => "lib/weights_f32.wgsl",
        PackedFormat::F16 => "lib/weights_f16.wgsl",
        PackedFormat::Bf16 => "lib/weights_bf16.wgsl",
        PackedFormat::Q4 => "lib/weights_q4.wgsl",
        PackedFormat::Q4Wide => "lib/weights_q4_wide.wgsl",
        PackedFormat::Q8 => "lib/weights_q8.wgsl",
        PackedFormat::Q8Wide => "lib/weights_q8_wide.wgsl",
    }
}

const fn block_file(format: PackedFormat) -> &'static str {
    match format.block_values() {
        Some(32) => "lib/block_4.wgsl",
        Some(_) => "lib/block_2.wgsl",
        None => "lib/block_1.wgsl",
    }
}

/// The end of the label of a pipeline that is to be compiled in the background; `LATER` in src/js/gpu_device.ts.
const LATER: &str = " (later)";

/// Pipelines and bind-group layouts of one device. Clones share them.
#[derive(Debug, Clone)]
pub struct Kernels {
    gpu: Gpu,
    layouts: Rc<RefCell<HashMap<Kernel, wgpu::BindGroupLayout>>>,
    pipelines: Rc<RefCell<HashMap<Variant, wgpu::ComputePipeline>>>,
    compiling: Rc<RefCell<Compiling>>,
}

/// Variants that are compiled in the background, each with what tells that it is done.
#[derive(Default)]
struct Compiling(Vec<(Variant, Compilation)>);

/// Tells how a compilation went.
type Compilation = Pin<Box<dyn Future<Output = Result<()>>>>;

impl std::fmt::Debug for Compiling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(variant, _)| variant)).finish()
    }
}

impl Kernels {
    /// No pipeline yet.
    pub fn new(gpu: Gpu) -> Self {
        Self { gpu, layouts: Rc::default(), pipelines: Rc::default(), compiling: Rc::default() }
    }

    /// The device they are for.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The pipeline of a variant, compiled now if it is not yet.
    ///
    /// # Errors
    /// `Internal` for a shader that cannot be composed.
    pub fn pipeline(&self, variant: Variant) -> Result<wgpu::ComputePipeline> {
        if let Some(pipeline) = self.pipelines.borrow().get(&variant) {
            return Ok(pipeline.clone());
        }
        let pipeline = self.compile(variant, variant.kernel.name())?;
        self.pipelines.borrow_mut().insert(variant, pipeline.clone());
        Ok(pipeline)
    }

    /// The pipeline of a variant or, until the device has compiled that in the background, of the largest smaller tile there is; with
    /// its tile.
    ///
    /// # Errors
    /// `Internal` for a shader that cannot be composed.
    pub fn ready(&self, variant: Variant) -> Result<(Tile, wgpu::ComputePipeline)> {
        let mut tile = variant.tile.unwrap_or(Tile::Rows1);
        if tile != Tile::Rows1 && !self.is_ready(variant)? {
            let exists = |tile| self.pipelines.borrow().contains_key(&Variant { tile: Some(tile), ..variant });
            while let Some(smaller) = tile.smaller().filter(|_| !exists(tile)) {
                tile = smaller;
            }
        }
        Ok((tile, self.pipeline(Variant { tile: variant.tile.map(|_| tile), ..variant })?))
    }

    /// Whether the pipeline of a variant needs no waiting for; if it does, the device begins to compile it in the background.
    ///
    /// # Errors
    /// `Internal` for a shader that cannot be composed.
    pub fn is_ready(&self, variant: Variant) -> Result<bool> {
        let exists = || self.pipelines.borrow().contains_key(&variant);
        if !exists() && self.gpu.caps.browser {
            self.compile_later(variant)?;
        }
        Ok(exists() || !self.gpu.caps.browser)
    }

    /// Waits until a variant [is ready](Self::is_ready).
    ///
    /// # Errors
    /// What the device says of it; `Internal` for a shader that cannot be composed.
    pub async fn compiled(&self, variant: Variant) -> Result<()> {
        if self.is_ready(variant)? {
            return Ok(());
        }
        let place = self.compiling.borrow().0.iter().position(|(v, _)| *v == variant);
        if let Some(place) = place {
            let (_, done) = self.compiling.borrow_mut().0.swap_remove(place);
            done.await?;
        }
        self.pipeline(variant).map(drop)
    }

    /// Begins to compile a variant in the background, or takes over what has been compiled there.
    fn compile_later(&self, variant: Variant) -> Result<()> {
        let compiling = &mut self.compiling.borrow_mut().0;
        if compiling.iter().all(|(v, _)| *v != variant) {
            let watch = self.gpu.watch();
            self.compile(variant, &format!("{}{LATER}", variant.kernel.name()))?;
            compiling.push((variant, Box::pin(watch.report("compiling a kernel"))));
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut finished = Vec::new();
        compiling.retain_mut(|(variant, done)| match done.as_mut().poll(&mut context) {
            Poll::Ready(result) => {
                finished.push(result.map(|()| *variant));
                false
            }
            Poll::Pending => true,
        });
        finished.into_iter().try_for_each(|variant| self.pipeline(variant?).map(drop))
    }

    fn compile(&self, variant: Variant, label: &str) -> Result<wgpu::ComputePipeline> {
        let source = variant.source(self.gpu.caps.shares_loads())?;
        let layout = self.layout(variant.kernel, &source);
        let device = &self.gpu.device;
        let name = variant.kernel.name();
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(name),
            source: wgpu::ShaderSource::Wgsl(self.gpu.caps.with_directives(&source).into()),
        });
        let mut constants = vec![("WORKGROUP", f64::from(self.gpu.caps.workgroup))];
        constants.extend(variant.special.constants().map(|(name, value)| (name, f64::from(u8::from(value)))));
        constants.retain(|(name, _)| source.contains(&format!("override {name}:")));
        Ok(device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(label),
            layout: Some(&device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(name),
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            })),
            module: &module,
            entry_point: Some(name),
            compilation_options: wgpu::PipelineCompilationOptions { constants: &constants, ..Default::default() },
            cache: None,
        }))
    }

    /// Has the device compile what a model of these matrices needs, and does not wait for it: a browser compiles while the weights
    /// are still being read. The future says whether all of it worked.
    pub fn warm_up(&self, layouts: &[(Matrix, PackedLayout)]) -> impl Future<Output = Result<()>> + use<> {
        let formats: Vec<_> =
            layouts.iter().map(|(matrix, layout)| (*matrix, self.gpu.caps.weight_format(layout.format))).collect();
        let watch = self.gpu.watch();
        let composed =
            Variant::for_model(&formats).into_iter().try_for_each(|variant| self.pipeline(variant).map(drop));
        let reported = watch.report("compiling the model's kernels");
        async move { composed.and(reported.await) }
    }

    /// The bind group of a kernel; all its variants share it.
    ///
    /// # Errors
    /// `Internal` for a shader that cannot be composed.
    pub fn bind(
        &self,
        kernel: Kernel,
        format: Option<PackedFormat>,
        resources: &[wgpu::BufferBinding<'_>],
    ) -> Result<wgpu::BindGroup> {
        let known = self.layouts.borrow().get(&kernel).cloned();
        let layout = match known {
            Some(layout) => layout,
            None => {
                self.layout(kernel, &Variant::new(kernel, format, Tile::Rows1).source(self.gpu.caps.shares_loads())?)
            }
        };
        let entries: Vec<_> = resources
            .iter()
            .enumerate()
            .map(|(i, resource)| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(resource.clone()),
            })
            .collect();
        Ok(self.gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.name()),
            layout: &layout,
            entries: &entries,
        }))
    }

    fn layout(&self, kernel: Kernel, source: &str) -> wgpu::BindGroupLayout {
        let mut layouts = self.layouts.borrow_mut();
        layouts
            .entry(kernel)
            .or_insert_with(|| {
                let entries: Vec<_> = shader::bindings(source)
                    .into_iter()
                    .enumerate()
                    .map(|(i, kind)| wgpu::BindGroupLayoutEntry {
                        binding: i as u32,
                        visibility: wgpu::ShaderStages::COMPUTE,
                        ty: wgpu::BindingType::Buffer {
                            ty: match kind {
                                BindingKind::Uniform => wgpu::BufferBindingType::Uniform,
                                BindingKind::ReadOnlyStorage => wgpu::BufferBindingType::Storage { read_only: true },
                                BindingKind::Storage => wgpu::BufferBindingType::Storage { read_only: false },
                            },
                            has_dynamic_offset: false,
                            min_binding_size: None,
                        },
                        count: None,
                    })
                    .collect();
                self.gpu.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                    label: Some(kernel.name()),
                    entries: &entries,
                })
            })
            .clone()
    }
}
