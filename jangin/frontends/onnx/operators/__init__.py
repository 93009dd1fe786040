"""Lower ONNX's operators to core ones. `OPERATORS` is the explicit table of them."""

from jangin.frontends.onnx import registry
from jangin.frontends.onnx.operators import (
    activation,
    conv,
    convert,
    elementwise,
    index,
    linear,
    move,
    normalize,
    quantize,
    reduce,
    shape,
    strings,
    window,
)

OPERATORS = registry.Operators(
    [
        elementwise,
        convert,
        activation,
        reduce,
        normalize,
        quantize,
        shape,
        move,
        index,
        window,
        conv,
        linear,
        strings,
    ],
    {
        "attention": "Attention RotaryEmbedding",
        "fused_attention": (
            "com.microsoft:Attention com.microsoft:EmbedLayerNormalization "
            "com.microsoft:GroupQueryAttention com.microsoft:MultiHeadAttention "
            "com.microsoft:RotaryEmbedding"
        ),
        "gradient": "ai.onnx.preview.training:Gradient",
        "linear_models": (
            "ai.onnx.ml:LinearClassifier ai.onnx.ml:LinearRegressor ai.onnx.ml:SVMClassifier "
            "ai.onnx.ml:SVMRegressor"
        ),
        "loss": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        "nchwc": (
            "com.microsoft.nchwc:AveragePool com.microsoft.nchwc:Conv "
            "com.microsoft.nchwc:GlobalAveragePool com.microsoft.nchwc:GlobalMaxPool "
            "com.microsoft.nchwc:MaxPool com.microsoft.nchwc:ReorderInput "
            "com.microsoft.nchwc:ReorderOutput com.microsoft.nchwc:Upsample"
        ),
        "qlinear": (
            "com.microsoft:DynamicQuantizeLSTM com.microsoft:DynamicQuantizeMatMul "
            "com.microsoft:MatMulIntegerToFloat com.microsoft:MatMulNBits com.microsoft:QGemm "
            "com.microsoft:QLinearAdd com.microsoft:QLinearAveragePool com.microsoft:QLinearConcat "
            "com.microsoft:QLinearConv com.microsoft:QLinearGlobalAveragePool "
            "com.microsoft:QLinearLeakyRelu com.microsoft:QLinearMul com.microsoft:QLinearReduceMean "
            "com.microsoft:QLinearSigmoid com.microsoft:QLinearSoftmax com.microsoft:QLinearWhere "
            "jangin:MatMulBlocks"
        ),
        "random": (
            "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
        ),
        "recurrent": "GRU LSTM RNN",
        "resize": "Resize Upsample",
        "sample": "DeformConv GridSample MaxRoiPool RoiAlign",
        "scan": "CumProd CumSum Det",
        "scatter": "MaxUnpool Scatter ScatterElements ScatterND TensorScatter",
        "sequence": (
            "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt "
            "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength "
            "SplitToSequence"
        ),
        "signal": "DFT MelWeightMatrix STFT",
        "tabular": (
            "ai.onnx.ml:ArrayFeatureExtractor ai.onnx.ml:Binarizer ai.onnx.ml:FeatureVectorizer "
            "ai.onnx.ml:Imputer ai.onnx.ml:LabelEncoder ai.onnx.ml:Normalizer "
            "ai.onnx.ml:OneHotEncoder ai.onnx.ml:Scaler"
        ),
        "training": (
            "ai.onnx.preview.training:Adagrad ai.onnx.preview.training:Adam ai.onnx.preview.training:Momentum"
        ),
        "trees": (
            "ai.onnx.ml:TreeEnsemble ai.onnx.ml:TreeEnsembleClassifier ai.onnx.ml:TreeEnsembleRegressor"
        ),
    },
)
