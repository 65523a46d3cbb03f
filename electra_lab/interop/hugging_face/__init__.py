"""The lab and Hugging Face's transformers. Importing this registers the lab's networks with the Auto classes.

AutoModel, AutoModelForPreTraining, AutoModelForMaskedLM and the Auto classes of sequence classification, token
classification and question answering then load what `electra-lab export` writes, around any backbone. Around `bert`,
they load it without this import.
"""

import transformers

from electra_lab.interop.hugging_face import models

transformers.AutoConfig.register(models.ElectraLabConfig.model_type, models.ElectraLabConfig)
for _auto, _model in {
    transformers.AutoModel: models.ElectraLabModel,
    transformers.AutoModelForPreTraining: models.ElectraLabForPreTraining,
    transformers.AutoModelForMaskedLM: models.ElectraLabForMaskedLM,
    transformers.AutoModelForSequenceClassification: models.ElectraLabForSequenceClassification,
    transformers.AutoModelForTokenClassification: models.ElectraLabForTokenClassification,
    transformers.AutoModelForQuestionAnswering: models.ElectraLabForQuestionAnswering,
}.items():
    _auto.register(models.ElectraLabConfig, _model)
