"""Frozen data with units: made by inspectors, cost and engines; shown by views and widgets."""

from workbench.records._advice import (
    AdviceRecord as AdviceRecord,
    FindingRecord as FindingRecord,
    GainRecord as GainRecord,
    Quantity as Quantity,
)
from workbench.records._base import VERSION as VERSION, Record as Record, deferred as deferred
from workbench.records._call_tree import (
    CallCollectiveRecord as CallCollectiveRecord,
    CallFiguresRecord as CallFiguresRecord,
    CallKind as CallKind,
    CallNodeRecord as CallNodeRecord,
    CallPass as CallPass,
    CallTreeRecord as CallTreeRecord,
)
from workbench.records._comparison import (
    ComparedRecord as ComparedRecord,
    ComparisonRecord as ComparisonRecord,
    Group as Group,
    Status as Status,
    Unit as Unit,
)
from workbench.records._compiled import (
    BufferRecord as BufferRecord,
    ClientCostRecord as ClientCostRecord,
    CollectiveRecord as CollectiveRecord,
    CostRecord as CostRecord,
    InstructionRecord as InstructionRecord,
    MemoryRecord as MemoryRecord,
    ModuleRecord as ModuleRecord,
    ProgramRecord as ProgramRecord,
    StageCostRecord as StageCostRecord,
    StagePartRecord as StagePartRecord,
)
from workbench.records._data import ClientDataRecord as ClientDataRecord, FieldRecord as FieldRecord
from workbench.records._explain import (
    CompilationRecord as CompilationRecord,
    ExplanationRecord as ExplanationRecord,
    LiveArrayRecord as LiveArrayRecord,
    OutOfMemoryRecord as OutOfMemoryRecord,
    RetraceRecord as RetraceRecord,
)
from workbench.records._files import write_whole as write_whole
from workbench.records._hardware import (
    AxisRecord as AxisRecord,
    ChipRecord as ChipRecord,
    ClientRange as ClientRange,
    DeviceRecord as DeviceRecord,
    MeshRecord as MeshRecord,
    RateKind as RateKind,
    RateRecord as RateRecord,
)
from workbench.records._in_bulk import without_collections as without_collections
from workbench.records._launch import (
    EdgeRecord as EdgeRecord,
    LaunchedRecord as LaunchedRecord,
    LaunchStatus as LaunchStatus,
    Live as Live,
    NodeKind as NodeKind,
    NodeRecord as NodeRecord,
    NodeStateName as NodeStateName,
    NodeStateRecord as NodeStateRecord,
    ProgramGraphRecord as ProgramGraphRecord,
)
from workbench.records._live import (
    ArrayRecord as ArrayRecord,
    ClientOutcomeRecord as ClientOutcomeRecord,
    ClientProfileRecord as ClientProfileRecord,
    DeviceSampleRecord as DeviceSampleRecord,
    HostSampleRecord as HostSampleRecord,
    ProblemRecord as ProblemRecord,
    RoundRecord as RoundRecord,
    SampleRecord as SampleRecord,
    SpanRecord as SpanRecord,
    TappedValueRecord as TappedValueRecord,
    TapRecord as TapRecord,
    TimelineRecord as TimelineRecord,
    WatchRecord as WatchRecord,
)
from workbench.records._overlay import (
    OverlaidMetricRecord as OverlaidMetricRecord,
    OverlaidResultRecord as OverlaidResultRecord,
    ResultPairRecord as ResultPairRecord,
    RunOverlayRecord as RunOverlayRecord,
)
from workbench.records._packages import package_of as package_of
from workbench.records._plan_choice import (
    PlanCandidateRecord as PlanCandidateRecord,
    PlanChoiceRecord as PlanChoiceRecord,
)
from workbench.records._play import (
    PlayedCourseRecord as PlayedCourseRecord,
    PlayedStageRecord as PlayedStageRecord,
    PlayedValueRecord as PlayedValueRecord,
    PlayRecord as PlayRecord,
)
from workbench.records._population import (
    DeviceClassRecord as DeviceClassRecord,
    PopulationRunRecord as PopulationRunRecord,
    ProtocolCostRecord as ProtocolCostRecord,
    ProtocolRoundRecord as ProtocolRoundRecord,
    SimulatedRoundRecord as SimulatedRoundRecord,
    WorkRecord as WorkRecord,
)
from workbench.records._profile import (
    ProfiledDeviceRecord as ProfiledDeviceRecord,
    ProfiledMemoryRecord as ProfiledMemoryRecord,
    ProfiledOperationRecord as ProfiledOperationRecord,
    ProfiledProgramRecord as ProfiledProgramRecord,
    ProfileRecord as ProfileRecord,
    UnjoinedRecord as UnjoinedRecord,
)
from workbench.records._program import (
    PlacementRecord as PlacementRecord,
    PlanRecord as PlanRecord,
    SourceLine as SourceLine,
    StageKind as StageKind,
    StageRecord as StageRecord,
    ValueRecord as ValueRecord,
)
from workbench.records._run import (
    ClientRunRecord as ClientRunRecord,
    DisclosedRecord as DisclosedRecord,
    EventRecord as EventRecord,
    RunRecord as RunRecord,
    StageRunRecord as StageRunRecord,
)
from workbench.records._scaling import ScaledCostRecord as ScaledCostRecord
from workbench.records._search import (
    SearchRecord as SearchRecord,
    ShardingChoiceRecord as ShardingChoiceRecord,
    SliceRecord as SliceRecord,
    SpecGroupRecord as SpecGroupRecord,
)
from workbench.records._sharding import (
    AxisArrivalRecord as AxisArrivalRecord,
    CollectiveKind as CollectiveKind,
    LeafShardingRecord as LeafShardingRecord,
    PlannedCollectiveKind as PlannedCollectiveKind,
    PlannedCollectiveRecord as PlannedCollectiveRecord,
    PlannedValueRecord as PlannedValueRecord,
    PropagationEdge as PropagationEdge,
    PropagationRecord as PropagationRecord,
    ShardingKind as ShardingKind,
    ShardingRecord as ShardingRecord,
    ShardRecord as ShardRecord,
)
from workbench.records._short_paths import folders_pattern as folders_pattern, shorten_paths as shorten_paths
from workbench.records._source_text import (
    cell_name as cell_name,
    read_source_line as read_source_line,
    read_source_lines as read_source_lines,
)
from workbench.records._target import (
    TargetAvailability as TargetAvailability,
    TargetCompilation as TargetCompilation,
    TargetRecord as TargetRecord,
)
from workbench.records._what_if import TrafficRecord as TrafficRecord, WhatIfRecord as WhatIfRecord
from workbench.records._why import (
    Reason as Reason,
    WhyArrayRecord as WhyArrayRecord,
    WhyCauseRecord as WhyCauseRecord,
    WhyCollectiveRecord as WhyCollectiveRecord,
    WhyOperandRecord as WhyOperandRecord,
    WhyRecord as WhyRecord,
)
